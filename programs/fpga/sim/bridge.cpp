// SPDX-License-Identifier: Apache-2.0
// A role in simulation, as a process that takes frames from its standard input and answers on its standard output.
// crates/p4/tests/fpga/model.rs is the other end. All numbers are little-endian.
//
//   Z                       resets the role: its memory is empty
//   N | C, length, bytes    a frame from the network, or from the role's process, waits to be sent in
//   B, gaps, busy, seed     from now on the senders pause, and the receivers aren't ready, in so many of 100 cycles
//   W, first, count         in the next run the receivers aren't ready in these cycles
//   R                       runs until nothing is on its way; all frames that came out (n | c, length, bytes) follow,
//                           then E and five numbers: see `Run`
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <string>
#include <vector>

#include HEADER

namespace {

using Frame = std::vector<uint8_t>;

// A run that is longer than that has got stuck.
constexpr uint64_t MOST_CYCLES = 50'000'000;

// What a run was like, in cycles from its start.
struct Run {
    uint64_t cycles = 0;
    // Cycles in which the role didn't take the beat that a sender had for it.
    uint64_t stalls = 0;
    uint64_t first_in = UINT64_MAX;
    uint64_t first_out = UINT64_MAX;
    uint64_t last_out = 0;
};

[[noreturn]] void die(const char *why) {
    std::fprintf(stderr, "bridge: %s\n", why);
    std::exit(1);
}

uint64_t state = 1;
uint32_t draw(uint32_t below) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return static_cast<uint32_t>(state >> 32) % below;
}

uint32_t read_number() {
    uint8_t bytes[4];
    if (std::fread(bytes, 1, 4, stdin) != 4) die("half a command");
    return bytes[0] | bytes[1] << 8 | bytes[2] << 16 | uint32_t(bytes[3]) << 24;
}

void write_number(uint64_t number, int bytes) {
    for (int i = 0; i < bytes; i++) std::fputc(static_cast<uint8_t>(number >> 8 * i), stdout);
}

// Sends frames into a stream, a beat a cycle.
template <class Data, class Keep> struct Sender {
    Data &data;
    Keep &keep;
    uint8_t &last, &valid;
    const uint8_t &ready;
    std::deque<Frame> frames{};
    size_t at = 0;

    void drive(bool pause) {
        // A beat that was shown stays until it is taken.
        if (frames.empty() || (pause && !valid)) {
            valid = 0;
            return;
        }
        const Frame &frame = frames.front();
        valid = 1;
        keep = 0;
        for (int i = 0; i < 16; i++) data[i] = 0;
        for (size_t i = 0; i < 64 && at + i < frame.size(); i++) {
            data[i / 4] |= uint32_t(frame[at + i]) << 8 * (i % 4);
            keep |= Keep(1) << i;
        }
        last = at + 64 >= frame.size();
    }

    // After the clock's edge, at which `ready` was so.
    bool taken(bool was_ready) {
        if (!valid || !was_ready) return false;
        at += 64;
        if (last) {
            frames.pop_front();
            at = 0;
        }
        valid = 0;
        return true;
    }
};

// Takes frames out of a stream, and holds it to AXI-Stream's rule: what is shown stays until it is taken.
template <class Data, class Keep> struct Receiver {
    char name;
    const Data &data;
    const Keep &keep;
    const uint8_t &last, &valid;
    uint8_t &ready;
    Frame frame{};
    Frame shown{};

    bool take() {
        if (!valid) {
            if (!shown.empty()) die("a beat was withdrawn");
            return false;
        }
        Frame beat;
        for (int i = 0; i < 64; i++)
            if (keep >> i & 1) beat.push_back(static_cast<uint8_t>(data[i / 4] >> 8 * (i % 4)));
        if (beat.empty() || (!last && beat.size() != 64)) die("a beat has a hole");
        if (!shown.empty() && shown != beat) die("a beat changed before it was taken");
        shown = beat;
        if (!ready) return false;
        shown.clear();
        frame.insert(frame.end(), beat.begin(), beat.end());
        if (!last) return true;
        std::fputc(name, stdout);
        write_number(frame.size(), 4);
        std::fwrite(frame.data(), 1, frame.size(), stdout);
        frame.clear();
        return true;
    }
};

struct Bench {
    MODEL top;
    Sender<decltype(top.s_axis_tdata), QData> network{top.s_axis_tdata, top.s_axis_tkeep, top.s_axis_tlast,
                                                      top.s_axis_tvalid, top.s_axis_tready};
    Sender<decltype(top.s_order_tdata), QData> process{top.s_order_tdata, top.s_order_tkeep, top.s_order_tlast,
                                                       top.s_order_tvalid, top.s_order_tready};
    Receiver<decltype(top.m_axis_tdata), QData> to_network{'n',           top.m_axis_tdata,  top.m_axis_tkeep,
                                                           top.m_axis_tlast, top.m_axis_tvalid, top.m_axis_tready};
    Receiver<decltype(top.m_order_tdata), QData> to_process{'c',           top.m_order_tdata,  top.m_order_tkeep,
                                                            top.m_order_tlast, top.m_order_tvalid, top.m_order_tready};
    uint32_t gaps = 0, busy = 0, window_first = 0, window_count = 0;

    void edge() {
        top.clk = 1;
        top.eval();
        top.clk = 0;
        top.eval();
    }

    void reset() {
        top.rst = 1;
        top.s_axis_tvalid = top.s_order_tvalid = 0;
        for (int i = 0; i < 4; i++) edge();
        top.rst = 0;
    }

    void run() {
        Run run;
        int quiet = 0;
        for (; quiet < 4; run.cycles++) {
            if (run.cycles > MOST_CYCLES) die("the role has got stuck");
            bool waits = run.cycles >= window_first && run.cycles < uint64_t(window_first) + window_count;
            top.m_axis_tready = !waits && draw(100) >= busy;
            top.m_order_tready = !waits && draw(100) >= busy;
            network.drive(gaps && draw(100) < gaps);
            process.drive(gaps && draw(100) < gaps);
            top.eval();
            bool network_ready = top.s_axis_tready, process_ready = top.s_order_tready;
            if (top.s_axis_tvalid) {
                if (run.first_in == UINT64_MAX) run.first_in = run.cycles;
                if (!network_ready) run.stalls++;
            }
            bool was_out = to_network.take() | to_process.take();
            if (was_out) {
                if (run.first_out == UINT64_MAX) run.first_out = run.cycles;
                run.last_out = run.cycles;
            }
            bool is_idle = top.idle && network.frames.empty() && process.frames.empty();
            quiet = is_idle ? quiet + 1 : 0;
            edge();
            network.taken(network_ready);
            process.taken(process_ready);
        }
        window_count = 0;
        std::fputc('E', stdout);
        for (uint64_t number : {run.cycles, run.stalls, run.first_in, run.first_out, run.last_out})
            write_number(number, 8);
        std::fflush(stdout);
    }
};

}  // namespace

int main() {
    static Bench bench;
    bench.reset();
    for (int command; (command = std::fgetc(stdin)) != EOF;) {
        switch (command) {
        case 'Z': bench.reset(); break;
        case 'N':
        case 'C': {
            Frame frame(read_number());
            if (std::fread(frame.data(), 1, frame.size(), stdin) != frame.size()) die("half a frame");
            (command == 'N' ? bench.network.frames : bench.process.frames).push_back(frame);
            break;
        }
        case 'B':
            bench.gaps = read_number();
            bench.busy = read_number();
            state = read_number() | 1;
            break;
        case 'W':
            bench.window_first = read_number();
            bench.window_count = read_number();
            break;
        case 'R': bench.run(); break;
        default: die("an unknown command");
        }
    }
    return 0;
}
