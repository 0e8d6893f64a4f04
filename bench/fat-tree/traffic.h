// SPDX-License-Identifier: Apache-2.0
// Packets in a fat tree: multicast, and a background after Benson et al.: hosts that send in bursts, with lognormal times.

#pragma once

#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "ns3/core-module.h"
#include "tree.h"

using namespace ns3;

struct Options {
    double load = 0.1, warmUpMs = 2, measuredMs = 20;
    uint32_t messages = 4000, groups = 500, receivers = 5, quorum = 3, bytes = 178, seed = 1;
    // Where the receivers of a group are: anywhere, or in one pod.
    std::string placement = "anywhere";
    // Messages a second of each group that the links carry, by NOPaxos or Paxos; the others only probe the queues.
    double groupRate = 0;
    std::string service = "nopaxos";
    double onUs = 500, onSigma = 1, offSigma = 1, gapSigma = 1, onRate = 0.5, inRack = 0.5, largeShare = 0.5;
    uint32_t smallBytes = 200, largeBytes = 1400;
    double middleboxUs = 8, middleboxP99Us = 16, hostUs = 12.5, hostP99Us = 25, pipelineNs = 100;
    bool check = false;
};

// A lognormal variable with this median and 99th percentile.
static Ptr<LogNormalRandomVariable> ByPercentiles(double median, double p99) {
    auto variable = CreateObject<LogNormalRandomVariable>();
    variable->SetAttribute("Mu", DoubleValue(std::log(median)));
    variable->SetAttribute("Sigma", DoubleValue(std::log(p99 / median) / 2.3263479));
    return variable;
}

static Ptr<LogNormalRandomVariable> ByMean(double mean, double sigma) {
    auto variable = CreateObject<LogNormalRandomVariable>();
    variable->SetAttribute("Mu", DoubleValue(std::log(mean) - sigma * sigma / 2));
    variable->SetAttribute("Sigma", DoubleValue(sigma));
    return variable;
}

static Picoseconds Clock() { return Simulator::Now().GetPicoSeconds(); }

// A copy for each path leaves where it must: packets that have the same way so far are one packet.
struct Multicast {
    std::vector<Path> paths;
    uint32_t bytes;
    bool probes;
    std::function<void(size_t)> arrived;
};

class Network {
  public:
    explicit Network(Tree& tree) : tree(tree) {}

    void Send(std::vector<Path> paths, uint32_t bytes, bool probes, std::function<void(size_t)> arrived) {
        std::vector<uint8_t> all;
        for (size_t at = 0; at < paths.size(); at++) all.push_back(at);
        Step(std::make_shared<Multicast>(Multicast{std::move(paths), bytes, probes, std::move(arrived)}), all, 0);
    }

    // A packet of the background's: nobody waits for it.
    void Forward(Path path, uint8_t at, uint16_t bytes) {
        Picoseconds after = tree.Send(path.links[at], Clock(), bytes, false);
        if (after >= 0 && ++at < path.count)
            Simulator::Schedule(PicoSeconds(after), &Network::Forward, this, path, at, bytes);
    }

  private:
    void Step(std::shared_ptr<Multicast> multicast, std::vector<uint8_t> copies, uint8_t at) {
        std::map<uint32_t, std::vector<uint8_t>> next;
        for (uint8_t copy : copies) {
            const Path& path = multicast->paths[copy];
            if (at == path.count)
                multicast->arrived(copy);
            else
                next[path.links[at]].push_back(copy);
        }
        for (auto& [link, those] : next) {
            Picoseconds after = tree.Send(link, Clock(), multicast->bytes, multicast->probes);
            if (after >= 0) Simulator::Schedule(PicoSeconds(after), &Network::Step, this, multicast, those, uint8_t(at + 1));
        }
    }

    Tree& tree;
};

// The background: each host sends for a while to one other, is silent for a while, and so on.
class Background {
  public:
    Background(Tree& tree, Network& network, const Options& options) : tree(tree), network(network), options(options) {
        double mean = options.largeShare * options.largeBytes + (1 - options.largeShare) * options.smallBytes;
        on = ByMean(options.onUs, options.onSigma);
        off = ByMean(options.onUs * (options.onRate / std::max(options.load, 1e-9) - 1), options.offSigma);
        gap = ByMean(mean * 8 / (tree.shape.hostGbps * options.onRate) / 1000, options.gapSigma);
        if (options.load == 0) return;
        // Bursts begin before the first is over, as if it had been so for a while.
        double cycle = options.onUs * options.onRate / options.load;
        for (NodeId host = 0; host < tree.Hosts(); host++)
            Simulator::Schedule(MicroSeconds(uniform->GetValue(0, cycle)), &Background::Burst, this, host);
    }

  private:
    void Burst(NodeId host) {
        NodeId to = Destination(host);
        Path path = tree.Along(tree.Route(host, to, uniform->GetInteger(0, 1 << 30)));
        NextPacket(host, path, Clock() + Picoseconds(on->GetValue() * 1e6));
    }

    void NextPacket(NodeId host, Path path, Picoseconds until) {
        if (Clock() >= until) {
            Simulator::Schedule(PicoSeconds(off->GetValue() * 1e6), &Background::Burst, this, host);
            return;
        }
        bool large = uniform->GetValue() < options.largeShare;
        network.Forward(path, 0, large ? options.largeBytes : options.smallBytes);
        Simulator::Schedule(PicoSeconds(gap->GetValue() * 1e6), &Background::NextPacket, this, host, path, until);
    }

    NodeId Destination(NodeId host) {
        uint32_t rack = tree.shape.hosts;
        while (true) {
            bool near = uniform->GetValue() < options.inRack;
            NodeId to = near ? host / rack * rack + uniform->GetInteger(0, rack - 1) : uniform->GetInteger(0, tree.Hosts() - 1);
            if (to != host && near == (to / rack == host / rack)) return to;
        }
    }

    Tree& tree;
    Network& network;
    const Options& options;
    Ptr<UniformRandomVariable> uniform = CreateObject<UniformRandomVariable>();
    Ptr<LogNormalRandomVariable> on, off, gap;
};

