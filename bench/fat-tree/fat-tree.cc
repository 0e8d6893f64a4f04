// SPDX-License-Identifier: Apache-2.0
// Sends messages of NOPaxos and of Paxos through a fat tree with background traffic, on ns-3's events and random numbers, and
// prints what it took as lines of JSON. `measure` builds it, and gives it what parameters.json says.

#include "messages.h"
#include "ns3/network-module.h"
#include "ns3/point-to-point-module.h"

// The same packets through a link of ours and through ns-3's own device: they must arrive at the same times.
static int Check() {
    Shape shape;
    shape.pods = shape.tors = shape.aggregations = shape.planes = shape.roots = 1;
    shape.hosts = 2;
    shape.bufferBytes = 1000000000;
    Tree tree(shape);
    NodeContainer nodes(2);
    PointToPointHelper helper;
    helper.SetDeviceAttribute("DataRate", StringValue("1Gbps"));
    helper.SetChannelAttribute("Delay", TimeValue(PicoSeconds(tree.links[0].delay)));
    helper.SetQueue("ns3::DropTailQueue", "MaxSize", StringValue("1000000p"));
    auto devices = helper.Install(nodes);
    std::vector<Picoseconds> expected, came;
    devices.Get(1)->SetReceiveCallback([&](Ptr<NetDevice>, Ptr<const Packet>, uint16_t, const Address&) {
        came.push_back(Clock());
        return true;
    });
    auto gap = ByMean(8.5, 1);
    auto uniform = CreateObject<UniformRandomVariable>();
    double at = 0;
    for (int count = 0; count < 20000; count++, at += gap->GetValue() * 1e6) {
        uint32_t bytes = uniform->GetValue() < 0.5 ? 200 : 1400;
        Simulator::Schedule(PicoSeconds(at), [&, bytes] {
            expected.push_back(Clock() + tree.Send(0, Clock(), bytes, false));
            // The device puts two bytes of PPP before it.
            devices.Get(0)->Send(Create<Packet>(bytes - 2), devices.Get(1)->GetAddress(), 0x0800);
        });
    }
    Simulator::Run();
    std::cout << "{\"check\": \"arrivals as of ns-3's own device\", \"packets\": " << came.size() << ", \"same\": "
              << (came == expected ? "true" : "false") << "}\n";
    return came == expected ? 0 : 1;
}

int main(int argc, char** argv) {
    Time::SetResolution(Time::PS);
    Shape shape;
    Options options;
    CommandLine line(__FILE__);
    line.AddValue("pods", "", shape.pods);
    line.AddValue("tors", "ToR switches of a pod", shape.tors);
    line.AddValue("hosts", "hosts of a ToR switch", shape.hosts);
    line.AddValue("aggregations", "aggregation switches of a pod", shape.aggregations);
    line.AddValue("planes", "", shape.planes);
    line.AddValue("roots", "", shape.roots);
    line.AddValue("host-gbps", "", shape.hostGbps);
    line.AddValue("tor-gbps", "", shape.torGbps);
    line.AddValue("root-gbps", "", shape.rootGbps);
    line.AddValue("host-link-ns", "", shape.hostLinkNs);
    line.AddValue("switch-link-ns", "", shape.switchLinkNs);
    line.AddValue("switch-ns", "", shape.switchNs);
    line.AddValue("buffer-bytes", "", shape.bufferBytes);
    line.AddValue("load", "share of a host's link", options.load);
    line.AddValue("warm-up-ms", "", options.warmUpMs);
    line.AddValue("measured-ms", "", options.measuredMs);
    line.AddValue("messages", "", options.messages);
    line.AddValue("groups", "", options.groups);
    line.AddValue("receivers", "", options.receivers);
    line.AddValue("quorum", "", options.quorum);
    line.AddValue("bytes", "of a message on the wire", options.bytes);
    line.AddValue("placement", "anywhere or pod", options.placement);
    line.AddValue("group-rate", "messages/s that links carry for each group", options.groupRate);
    line.AddValue("service", "nopaxos or paxos", options.service);
    line.AddValue("on-us", "", options.onUs);
    line.AddValue("on-sigma", "", options.onSigma);
    line.AddValue("off-sigma", "", options.offSigma);
    line.AddValue("gap-sigma", "", options.gapSigma);
    line.AddValue("on-rate", "", options.onRate);
    line.AddValue("in-rack", "", options.inRack);
    line.AddValue("large-share", "", options.largeShare);
    line.AddValue("small-bytes", "", options.smallBytes);
    line.AddValue("large-bytes", "", options.largeBytes);
    line.AddValue("middlebox-us", "", options.middleboxUs);
    line.AddValue("middlebox-p99-us", "", options.middleboxP99Us);
    line.AddValue("host-us", "", options.hostUs);
    line.AddValue("host-p99-us", "", options.hostP99Us);
    line.AddValue("pipeline-ns", "", options.pipelineNs);
    line.AddValue("seed", "", options.seed);
    line.AddValue("check", "compare a link with ns-3's own", options.check);
    line.Parse(argc, argv);
    RngSeedManager::SetSeed(options.seed);
    if (options.check) return Check();

    Tree tree(shape);
    Network network(tree);
    Background background(tree, network, options);
    Messages messages(tree, network, options);
    // Half a millisecond for the last messages.
    Simulator::Stop(MilliSeconds(1) * (options.warmUpMs + options.measuredMs + 0.5));
    Simulator::Run();
    uint64_t packets = 0, dropped = 0;
    for (const Link& link : tree.links) packets += link.packets, dropped += link.dropped;
    char head[200];
    snprintf(head, sizeof head,
             "\"hosts\": %u, \"switches_in_all\": %u, \"pods\": %u, \"placement\": \"%s\", \"load\": %g, \"packet_hops\": %lu, "
             "\"dropped\": %lu",
             tree.Hosts(), tree.Switches(), shape.pods, options.placement.c_str(), options.load, packets, dropped);
    messages.Print(head);
    Simulator::Destroy();
    return 0;
}
