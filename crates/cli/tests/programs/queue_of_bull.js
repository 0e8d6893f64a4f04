// SPDX-License-Identifier: Apache-2.0
// Jobs that come by one replica, are taken by another one, and are done; a failed one is tried again.
const Queue = require("bull");
const [ours, theirs] = process.argv.slice(2).map((address) => {
  const [host, port] = address.split(":");
  return { redis: { host, port: Number(port) } };
});

async function main() {
  const queue = new Queue("mail", ours);
  const worker = new Queue("mail", theirs);
  queue.on("error", fail);
  worker.on("error", fail);
  const tried = new Map();
  worker.process(async (job) => {
    const times = (tried.get(job.id) || 0) + 1;
    tried.set(job.id, times);
    if (job.data.fails && times === 1) throw new Error("once more");
    return job.data.n * 2;
  });
  const jobs = [];
  for (let n = 0; n < 20; n++) {
    jobs.push(await queue.add({ n, fails: n % 7 === 0 }, { attempts: 2 }));
  }
  for (const [n, job] of jobs.entries()) {
    const result = await job.finished();
    if (result !== 2 * n) throw new Error(`job ${n}: ${result}`);
  }
  const { completed, failed, active, waiting } = await queue.getJobCounts();
  const counts = [completed, failed, active, waiting].join(" ");
  if (counts !== "20 0 0 0") throw new Error(counts);
  await Promise.all([worker.close(), queue.close()]);
}

function fail(error) {
  console.error(error);
  process.exit(1);
}

setTimeout(() => fail("it takes too long"), 100000).unref();
main().then(() => process.exit(0), fail);
