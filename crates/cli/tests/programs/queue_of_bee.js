// SPDX-License-Identifier: Apache-2.0
// Jobs that come by one replica, are taken by another one, and are done.
const Queue = require("bee-queue");
const [ours, theirs] = process.argv.slice(2).map((address) => {
  const [host, port] = address.split(":");
  return { host, port: Number(port) };
});

async function main() {
  const queue = new Queue("mail", { redis: ours, isWorker: false });
  const worker = new Queue("mail", { redis: theirs, removeOnSuccess: false });
  queue.on("error", fail);
  worker.on("error", fail);
  await Promise.all([queue.ready(), worker.ready()]);
  const results = [];
  for (let n = 0; n < 20; n++) {
    const job = queue.createJob({ n });
    results.push(new Promise((resolve, reject) => job.on("succeeded", resolve).on("failed", reject)));
    await job.save();
  }
  worker.process(async (job) => job.data.n * 2);
  for (const [n, result] of (await Promise.all(results)).entries()) {
    if (result !== 2 * n) throw new Error(`job ${n}: ${result}`);
  }
  const { succeeded, active, waiting } = await queue.checkHealth();
  const counts = [succeeded, active, waiting].join(" ");
  if (counts !== "20 0 0") throw new Error(counts);
  await Promise.all([worker.close(), queue.close()]);
}

function fail(error) {
  console.error(error);
  process.exit(1);
}

setTimeout(() => fail("it takes too long"), 100000).unref();
main().then(() => process.exit(0), fail);
