// SPDX-License-Identifier: Apache-2.0
// A fat tree of three levels: its nodes, its links with their queues, and the paths through it.
//
// A link is a FIFO queue that drops what doesn't fit its buffer. As all packets of a link are served in the order in which they
// come, the time at which the link has sent everything says all about its queue, and a packet costs one event of ns-3 a link.
// `fat-tree --check` compares this with ns-3's own PointToPointNetDevice.

#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <stdexcept>
#include <unordered_map>
#include <vector>

using NodeId = uint32_t;
using Picoseconds = int64_t;

// What a packet passes: the links in order. The longest way is that of a vote to an acceptor that isn't below the leader.
struct Path {
    std::array<uint32_t, 10> links;
    uint8_t count = 0;
};

// How the tree is built. Each root has links to `aggregations / planes` switches of every pod.
struct Shape {
    uint32_t pods = 4, tors = 16, hosts = 40, aggregations = 10, planes = 5, roots = 15;
    double hostGbps = 1, torGbps = 10, rootGbps = 10;
    double hostLinkNs = 50, switchLinkNs = 250, switchNs = 300;
    uint32_t bufferBytes = 200000;
};

struct Link {
    NodeId from, to;
    double psPerByte;
    Picoseconds delay;
    Picoseconds busyUntil = 0;
    uint64_t bytes = 0, packets = 0, dropped = 0;
};

class Tree {
  public:
    explicit Tree(const Shape& shape) : shape(shape) {
        for (NodeId host = 0; host < Hosts(); host++) Join(host, Tor(host), shape.hostGbps, shape.hostLinkNs);
        for (NodeId tor = FirstTor(); tor < FirstAggregation(); tor++)
            for (uint32_t at = 0; at < shape.aggregations; at++)
                Join(tor, Aggregation(PodOf(tor), at), shape.torGbps, shape.switchLinkNs);
        for (uint32_t root = 0; root < shape.roots; root++)
            for (uint32_t pod = 0; pod < shape.pods; pod++)
                for (uint32_t at = root % shape.planes; at < shape.aggregations; at += shape.planes)
                    Join(Aggregation(pod, at), FirstRoot() + root, shape.rootGbps, shape.switchLinkNs);
        for (uint32_t root = 0; root < shape.roots; root++)
            Join(FirstRoot() + root, FirstMiddlebox() + root, shape.rootGbps, shape.hostLinkNs);
    }

    uint32_t Hosts() const { return shape.pods * shape.tors * shape.hosts; }
    uint32_t Switches() const { return FirstMiddlebox() - FirstTor(); }
    NodeId Tor(NodeId host) const { return FirstTor() + host / shape.hosts; }
    NodeId Root(uint32_t salt) const { return FirstRoot() + salt % shape.roots; }
    // The network processor that is attached to this root.
    NodeId Middlebox(uint32_t salt) const { return FirstMiddlebox() + salt % shape.roots; }
    bool IsRoot(NodeId node) const { return node >= FirstRoot() && node < FirstMiddlebox(); }
    bool IsAggregation(NodeId node) const { return node >= FirstAggregation() && node < FirstRoot(); }

    uint32_t PodOf(NodeId node) const {
        if (node < FirstTor()) return node / (shape.hosts * shape.tors);
        if (node < FirstAggregation()) return (node - FirstTor()) / shape.tors;
        return (node - FirstAggregation()) / shape.aggregations;
    }

    // The aggregation switches of a pod in the order in which acceptors are put there: first those below the root of `salt`.
    std::vector<NodeId> Acceptors(uint32_t pod, uint32_t salt, uint32_t count) const {
        std::vector<NodeId> found;
        uint32_t plane = salt % shape.roots % shape.planes;
        for (uint32_t at = plane; at < shape.aggregations; at += shape.planes) found.push_back(Aggregation(pod, at));
        for (uint32_t at = 0; found.size() < count; at++)
            if (at % shape.planes != plane) found.push_back(Aggregation(pod, at));
        found.resize(count);
        return found;
    }

    bool IsBelow(NodeId aggregation, uint32_t salt) const {
        return (aggregation - FirstAggregation()) % shape.aggregations % shape.planes == salt % shape.roots % shape.planes;
    }

    // From a node up to the root that `salt` selects: all messages of a group, or packets of a flow, take the same way.
    std::vector<NodeId> Climb(NodeId node, uint32_t salt) const {
        std::vector<NodeId> chain{node};
        if (node >= FirstMiddlebox()) chain.push_back(FirstRoot() + (node - FirstMiddlebox()));
        if (node < FirstTor()) chain.push_back(Tor(node));
        if (node < FirstAggregation()) chain.push_back(AggregationOf(PodOf(node), salt));
        if (node < FirstRoot()) chain.push_back(Root(salt));
        return chain;
    }

    // Up to the lowest common ancestor, and down.
    std::vector<NodeId> Route(NodeId from, NodeId to, uint32_t salt) const {
        std::vector<NodeId> up = Climb(from, salt), down = Climb(to, salt);
        while (up.size() > 1 && down.size() > 1 && up[up.size() - 2] == down[down.size() - 2]) {
            up.pop_back();
            down.pop_back();
        }
        up.insert(up.end(), down.rbegin() + 1, down.rend());
        return up;
    }

    Path Along(const std::vector<NodeId>& nodes) const {
        Path path;
        for (size_t at = 1; at < nodes.size(); at++) path.links.at(path.count++) = ids.at(Key(nodes[at - 1], nodes[at]));
        return path;
    }

    // The lowest switch above all of these hosts.
    NodeId CommonAncestor(const std::vector<NodeId>& hosts, uint32_t salt) const {
        for (size_t level = 1; level < 3; level++) {
            NodeId first = Climb(hosts[0], salt)[level];
            if (std::all_of(hosts.begin(), hosts.end(), [&](NodeId host) { return Climb(host, salt)[level] == first; }))
                return first;
        }
        return Root(salt);
    }

    // When a packet that comes now is at the other end, counted from now; -1 if the queue is full. Packets that only probe see
    // the queue, and aren't in it.
    Picoseconds Send(uint32_t id, Picoseconds now, uint32_t bytes, bool probes) {
        Link& link = links[id];
        Picoseconds wait = std::max<Picoseconds>(0, link.busyUntil - now);
        if (wait / link.psPerByte > shape.bufferBytes) {
            link.dropped += !probes;
            return -1;
        }
        Picoseconds sent = wait + Picoseconds(bytes * link.psPerByte);
        if (!probes) {
            link.busyUntil = now + sent;
            link.bytes += bytes;
            link.packets++;
        }
        return sent + link.delay;
    }

    const Shape shape;
    std::vector<Link> links;

  private:
    NodeId FirstTor() const { return Hosts(); }
    NodeId FirstAggregation() const { return FirstTor() + shape.pods * shape.tors; }
    NodeId FirstRoot() const { return FirstAggregation() + shape.pods * shape.aggregations; }
    NodeId FirstMiddlebox() const { return FirstRoot() + shape.roots; }
    NodeId Aggregation(uint32_t pod, uint32_t at) const { return FirstAggregation() + pod * shape.aggregations + at; }

    NodeId AggregationOf(uint32_t pod, uint32_t salt) const {
        uint32_t choices = shape.aggregations / shape.planes;
        return Aggregation(pod, salt % shape.roots % shape.planes + shape.planes * (salt / shape.roots % choices));
    }

    // A link each way. The time that a switch takes for a packet is part of the link that leads to it.
    void Join(NodeId below, NodeId above, double gbps, double ns) {
        for (auto [from, to] : {std::pair{below, above}, std::pair{above, below}}) {
            bool isSwitch = to >= FirstTor() && to < FirstMiddlebox();
            ids[Key(from, to)] = links.size();
            links.push_back({from, to, 8000 / gbps, Picoseconds(1000 * (ns + (isSwitch ? shape.switchNs : 0)))});
        }
    }

    static uint64_t Key(NodeId from, NodeId to) { return uint64_t(from) << 32 | to; }

    std::unordered_map<uint64_t, uint32_t> ids;
};
