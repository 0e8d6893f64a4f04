// SPDX-License-Identifier: Apache-2.0
// Jobs that come by one replica, are taken by another one, and are done: with their data, after a delay, again after a failure.
const { Queue, QueueEvents, Worker } = require("bullmq");
const [ours, theirs] = process.argv.slice(2).map((address) => {
  const [host, port] = address.split(":");
  return { host, port: Number(port), maxRetriesPerRequest: null };
});

async function main() {
  const queue = new Queue("mail", { connection: ours });
  const events = new QueueEvents("mail", { connection: ours });
  await events.waitUntilReady();
  const tried = new Map();
  const work = async (job) => {
    const times = (tried.get(job.id) || 0) + 1;
    tried.set(job.id, times);
    if (job.data.fails && times === 1) throw new Error("once more");
    return job.data.n * 2;
  };
  const worker = new Worker("mail", work, { connection: theirs });
  worker.on("error", (error) => fail(error));
  const jobs = [];
  for (let n = 0; n < 20; n++) {
    const options = { attempts: 2, delay: n % 5 === 0 ? 50 : 0 };
    jobs.push(await queue.add("send", { n, fails: n % 7 === 0 }, options));
  }
  for (const [n, job] of jobs.entries()) {
    const result = await job.waitUntilFinished(events);
    if (result !== 2 * n) throw new Error(`job ${n}: ${result}`);
  }
  const counts = await queue.getJobCounts("completed", "failed", "active", "wait", "delayed");
  const expected = { completed: 20, failed: 0, active: 0, wait: 0, delayed: 0 };
  if (JSON.stringify(counts) !== JSON.stringify(expected)) throw new Error(JSON.stringify(counts));
  await Promise.all([worker.close(), events.close(), queue.close()]);
}

function fail(error) {
  console.error(error);
  process.exit(1);
}

setTimeout(() => fail("it takes too long"), 100000).unref();
main().then(() => process.exit(0), fail);
