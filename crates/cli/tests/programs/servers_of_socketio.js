// SPDX-License-Identifier: Apache-2.0
// Two servers of socket.io, each at its own replica: a message to a room reaches the clients of both, and each server
// counts the sockets of both.
const { createServer } = require("http");
const { Server } = require("socket.io");
const { io } = require("socket.io-client");
const { createAdapter } = require("@socket.io/redis-adapter");
const Redis = require("ioredis");
const replicas = process.argv.slice(2).map((address) => {
  const [host, port] = address.split(":");
  return { host, port: Number(port) };
});

async function main() {
  const servers = [];
  const clients = [];
  for (const replica of replicas) {
    const http = createServer();
    const publisher = new Redis(replica);
    const server = new Server(http, { adapter: createAdapter(publisher, publisher.duplicate()) });
    server.on("connection", async (socket) => {
      await socket.join("room");
      socket.emit("joined");
    });
    await new Promise((listens) => http.listen(0, "127.0.0.1", listens));
    servers.push(server);
    const client = io(`http://127.0.0.1:${http.address().port}`);
    client.on("connect_error", fail);
    await new Promise((joined) => client.on("joined", joined));
    clients.push(client);
  }
  const sockets = await servers[0].in("room").fetchSockets();
  if (sockets.length !== 2) throw new Error(`${sockets.length} sockets`);
  for (const [n, server] of servers.entries()) {
    const told = clients.map((client) => new Promise((tell) => client.once("news", tell)));
    server.to("room").emit("news", n);
    const news = await Promise.all(told);
    if (news.some((m) => m !== n)) throw new Error(`news: ${news}`);
  }
  servers[0].on("count", (answer) => answer(clients.length));
  const counts = await servers[1].serverSideEmitWithAck("count");
  if (counts.join() !== "2") throw new Error(`answers of the other server: ${counts}`);
}

function fail(error) {
  console.error(error);
  process.exit(1);
}

setTimeout(() => fail("it takes too long"), 100000).unref();
main().then(() => process.exit(0), fail);
