// SPDX-License-Identifier: Apache-2.0
// Messages of NOPaxos and P4xos in a fat tree, and what they take.

#pragma once

#include <cstdio>
#include <iostream>

#include "traffic.h"

// What each way took for each message: picoseconds until a quorum had it; -1 where it didn't get it.
using Latencies = std::vector<Picoseconds>;

// Sends each message on every way at the same instant. They only probe the queues, so that all ways meet the same ones.
class Messages {
  public:
    Messages(Tree& tree, Network& network, const Options& options) : tree(tree), network(network), options(options) {
        for (uint32_t at = 0; at < options.groups; at++) groups.push_back(Receivers());
        for (uint32_t at = 0; at < options.groups; at++) salts.push_back(uniform->GetInteger(0, 1 << 30));
        for (uint32_t at = 0; at < options.groups; at++) hosts.push_back(AnyHost());
        for (uint32_t at = 0; at < options.messages; at++)
            Simulator::Schedule(MilliSeconds(1) * (options.warmUpMs + options.measuredMs * at / options.messages),
                                &Messages::Probe, this, at);
        if (options.groupRate > 0)
            for (uint32_t at = 0; at < options.groups; at++)
                Simulator::Schedule(PicoSeconds(pause->GetValue() * Interval()), &Messages::Carry, this, at);
    }

    void Print(const std::string& head) const {
        for (auto& [name, latencies] : taken) {
            std::cout << "{" << head << ", \"way\": \"" << name << "\", " << Percentiles("latency_us", latencies);
            if (links.count(name)) std::cout << ", \"links\": " << Median(links.at(name));
            if (name.rfind("sequencer", 0) == 0) {
                std::cout << ", " << Added("beside_group_tree", latencies, taken.at("multicast/group-tree"));
                std::cout << ", " << Added("beside_own_tree", latencies, taken.at("multicast/own-tree"));
            }
            std::cout << "}\n";
        }
        if (options.groupRate > 0) PrintCarried(head);
    }

  private:
    void Probe(uint32_t message) {
        uint32_t group = message % options.groups, salt = salts[group];
        NodeId sender = AnyHost();
        while (std::count(groups[group].begin(), groups[group].end(), sender)) sender = AnyHost();
        Direct("multicast/group-tree", message, sender, group, salt);
        Direct("multicast/own-tree", message, sender, group, salt ^ (sender * 2654435761u >> 2));
        Sequenced("sequencer/common-ancestor", message, sender, group, tree.CommonAncestor(groups[group], salt), 0);
        Sequenced("sequencer/root", message, sender, group, tree.Root(salt), 0);
        Sequenced("sequencer/middlebox", message, sender, group, tree.Middlebox(salt), middlebox->GetValue());
        Sequenced("sequencer/host", message, sender, group, hosts[group], host->GetValue());
        InSwitches(message, sender, groups[group][0], salt);
        OnHosts("paxos/hosts", message, sender, groups[group][0], 1);
        OnHosts("paxos/hosts-that-take-no-time", message, sender, groups[group][0], 0);
    }

    // As IP multicast does: nobody orders the messages.
    void Direct(const std::string& way, uint32_t message, NodeId sender, uint32_t group, uint32_t salt) {
        auto count = std::make_shared<uint32_t>(0);
        network.Send(Paths(sender, groups[group], salt), options.bytes, true, [=](size_t) { Count(way, message, *count); });
    }

    void Sequenced(const std::string& way, uint32_t message, NodeId sender, uint32_t group, NodeId sequencer, double us) {
        auto count = std::make_shared<uint32_t>(0);
        network.Send(Paths(sender, {sequencer}, salts[group]), options.bytes, true, [=](size_t) {
            Later(us, [=] {
                network.Send(Paths(sequencer, groups[group], salts[group]), options.bytes, true,
                             [=](size_t) { Count(way, message, *count); });
            });
        });
    }

    // P4xos: the leader in a root, acceptors in the aggregation switches of the learner's pod, the learner in its ToR.
    void InSwitches(uint32_t message, NodeId proposer, NodeId learner, uint32_t salt) {
        NodeId leader = tree.Root(salt), tor = tree.Tor(learner);
        uint32_t links = tree.Along(tree.Route(proposer, leader, salt)).count;
        auto votes = std::make_shared<uint32_t>(0);
        auto decided = [=](const std::string& way, uint32_t all) {
            network.Send({tree.Along({tor, learner})}, options.bytes, true, [=](size_t) { Done(way, message, all + 1); });
        };
        double us = options.pipelineNs / 1000;
        network.Send(Paths(proposer, {leader}, salt), options.bytes, true, [=](size_t) {
            std::vector<Path> paths;
            for (NodeId acceptor : tree.Acceptors(tree.PodOf(learner), salt, 3))
                paths.push_back(ThroughAcceptor(leader, acceptor, tor, salt));
            Later(2 * us, [=] {
                network.Send(paths, options.bytes, true, [=](size_t at) {
                    if (++*votes == 2) Later(us, [=] { decided("paxos/switches", links + paths[at].count); });
                });
            });
        });
    }

    // Down to an acceptor that isn't below the leader it goes by the learner's ToR, and comes back there.
    Path ThroughAcceptor(NodeId leader, NodeId acceptor, NodeId tor, uint32_t salt) const {
        if (tree.IsBelow(acceptor, salt)) return tree.Along({leader, acceptor, tor});
        return tree.Along({leader, tree.Acceptors(tree.PodOf(tor), salt, 1)[0], tor, acceptor, tor});
    }

    void OnHosts(const std::string& way, uint32_t message, NodeId proposer, NodeId learner, double scale) {
        NodeId leader = hosts[message % options.groups];
        std::vector<NodeId> acceptors{AnyHost(), AnyHost(), AnyHost()};
        auto votes = std::make_shared<uint32_t>(0);
        uint32_t salt = uniform->GetInteger(0, 1 << 30);
        double leaderUs = scale * host->GetValue();
        std::array<double, 3> acceptorUs{scale * host->GetValue(), scale * host->GetValue(), scale * host->GetValue()};
        auto paths = Paths(leader, acceptors, salt);
        uint32_t links = tree.Along(tree.Route(proposer, leader, salt)).count;
        network.Send(Paths(proposer, {leader}, salt), options.bytes, true, [=](size_t) {
            Later(leaderUs, [=] {
                network.Send(paths, options.bytes, true, [=](size_t at) {
                    auto vote = Paths(acceptors[at], {learner}, salt);
                    Later(acceptorUs[at], [=] {
                        network.Send(vote, options.bytes, true, [=](size_t) {
                            if (++*votes == 2) Done(way, message, links + paths[at].count + vote[0].count);
                        });
                    });
                });
            });
        });
    }

    // A message that the links carry, and the next one.
    void Carry(uint32_t group) {
        Simulator::Schedule(PicoSeconds(pause->GetValue() * Interval()), &Messages::Carry, this, group);
        NodeId sender = AnyHost(), leader = tree.Root(salts[group]);
        if (options.service == "nopaxos") leader = tree.CommonAncestor(groups[group], salts[group]);
        double ms = Clock() / 1e9;
        bool measured = ms >= options.warmUpMs && ms < options.warmUpMs + options.measuredMs;
        network.Send(Paths(sender, {leader}, salts[group]), options.bytes, false, [=](size_t) {
            carried[leader] += measured;
            if (options.service == "nopaxos")
                network.Send(Paths(leader, groups[group], salts[group]), options.bytes, false, [](size_t) {});
            else
                CarryVotes(group, leader);
        });
    }

    void CarryVotes(uint32_t group, NodeId leader) {
        uint32_t salt = salts[group];
        auto acceptors = tree.Acceptors(tree.PodOf(groups[group][0]), salt, 3);
        std::vector<Path> paths;
        for (NodeId acceptor : acceptors) {
            Path path = ThroughAcceptor(leader, acceptor, tree.Tor(groups[group][0]), salt);
            path.count--;
            paths.push_back(path);
        }
        auto votes = std::make_shared<std::vector<uint32_t>>(options.receivers);
        network.Send(paths, options.bytes, false, [=](size_t at) {
            std::vector<Path> ways;
            for (NodeId replica : groups[group]) ways.push_back(tree.Along(Descend(acceptors[at], tree.Tor(replica), salt)));
            // Each learner takes its second vote for the quorum.
            network.Send(ways, options.bytes, false, [=](size_t replica) {
                NodeId host = groups[group][replica];
                if (++(*votes)[replica] == 2) network.Send({tree.Along({tree.Tor(host), host})}, options.bytes, false, [](size_t) {});
            });
        });
    }

    // A vote for another pod goes by a root that is above its acceptor.
    std::vector<NodeId> Descend(NodeId acceptor, NodeId tor, uint32_t salt) const {
        if (tree.PodOf(acceptor) == tree.PodOf(tor)) return {acceptor, tor};
        while (!tree.IsBelow(acceptor, salt)) salt++;
        return tree.Route(acceptor, tor, salt);
    }

    void Count(const std::string& way, uint32_t message, uint32_t& count) {
        if (++count == options.quorum) Done(way, message, 0);
    }

    void Done(const std::string& way, uint32_t message, uint32_t passed) {
        auto& latencies = taken.try_emplace(way, options.messages, -1).first->second;
        double sent = (options.warmUpMs + options.measuredMs * message / options.messages) * 1e9;
        latencies[message] = Clock() - Picoseconds(sent);
        if (passed) links[way].push_back(passed);
    }

    void Later(double us, std::function<void()> what) {
        if (us == 0)
            what();
        else
            Simulator::Schedule(PicoSeconds(us * 1e6), what);
    }

    std::vector<Path> Paths(NodeId from, const std::vector<NodeId>& to, uint32_t salt) const {
        std::vector<Path> paths;
        for (NodeId each : to) paths.push_back(tree.Along(tree.Route(from, each, salt)));
        return paths;
    }

    NodeId AnyHost() { return uniform->GetInteger(0, tree.Hosts() - 1); }

    std::vector<NodeId> Receivers() {
        std::vector<NodeId> found;
        NodeId first = AnyHost();
        while (found.size() < options.receivers) {
            NodeId next = AnyHost();
            if (options.placement == "pod" && tree.PodOf(next) != tree.PodOf(first)) continue;
            if (!std::count(found.begin(), found.end(), next)) found.push_back(next);
        }
        return found;
    }

    double Interval() const { return 1e12 / options.groupRate; }

    static double At(std::vector<double>& sorted, double share) {
        return sorted.empty() ? -1 : sorted[size_t(share * (sorted.size() - 1))];
    }

    static std::string Percentiles(const std::string& name, const Latencies& latencies) {
        std::vector<double> us;
        for (Picoseconds each : latencies)
            if (each >= 0) us.push_back(each / 1e6);
        std::sort(us.begin(), us.end());
        char text[200];
        snprintf(text, sizeof text, "\"messages\": %zu, \"lost\": %zu, \"%s\": {\"p50\": %.3f, \"p99\": %.3f}", latencies.size(),
                 latencies.size() - us.size(), name.c_str(), At(us, 0.5), At(us, 0.99));
        return text;
    }

    static uint32_t Median(std::vector<uint32_t> values) {
        std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
        return values[values.size() / 2];
    }

    // How much later a quorum had each message than without a sequencer.
    static std::string Added(const std::string& beside, const Latencies& latencies, const Latencies& without) {
        std::vector<double> us;
        for (size_t at = 0; at < latencies.size(); at++)
            if (latencies[at] >= 0 && without[at] >= 0) us.push_back((latencies[at] - without[at]) / 1e6);
        std::sort(us.begin(), us.end());
        double nothing = std::count_if(us.begin(), us.end(), [](double each) { return each <= 0; });
        char text[300];
        snprintf(text, sizeof text,
                 "\"%s\": {\"nothing_added\": %.4f, \"added_us\": {\"p50\": %.3f, \"p90\": %.3f, \"p99\": %.3f}}", beside.c_str(),
                 nothing / us.size(), At(us, 0.5), At(us, 0.9), At(us, 0.99));
        return text;
    }

    void PrintCarried(const std::string& head) const {
        std::map<NodeId, double> busiest;
        double seconds = Clock() / 1e12;
        for (const Link& link : tree.links)
            for (NodeId node : {link.from, link.to})
                if (carried.count(node)) busiest[node] = std::max(busiest[node], link.bytes * link.psPerByte / 1e12 / seconds);
        double most = 0, sum = 0, link = 0;
        for (auto& [node, count] : carried) {
            most = std::max<double>(most, count);
            sum += count;
            link = std::max(link, busiest[node]);
        }
        double measured = options.measuredMs / 1e3;
        std::cout << "{" << head << ", \"way\": \"carried\", \"service\": \"" << options.service << "\", \"switches\": "
                  << carried.size() << ", \"messages_per_s\": " << uint64_t(sum / measured) << ", \"busiest_switch_per_s\": "
                  << uint64_t(most / measured) << ", \"busiest_link\": " << link << "}\n";
    }

    Tree& tree;
    Network& network;
    const Options& options;
    std::vector<std::vector<NodeId>> groups;
    std::vector<uint32_t> salts;
    std::vector<NodeId> hosts;
    std::map<std::string, Latencies> taken;
    // How many links lay between the proposer and the learner, by way.
    std::map<std::string, std::vector<uint32_t>> links;
    std::map<NodeId, uint64_t> carried;
    Ptr<UniformRandomVariable> uniform = CreateObject<UniformRandomVariable>();
    Ptr<ExponentialRandomVariable> pause = CreateObject<ExponentialRandomVariable>();
    Ptr<LogNormalRandomVariable> middlebox = ByPercentiles(options.middleboxUs, options.middleboxP99Us);
    Ptr<LogNormalRandomVariable> host = ByPercentiles(options.hostUs, options.hostP99Us);
};

