/* SPDX-License-Identifier: Apache-2.0 */
/* Requests that somebody sends again who has seen them on their way: as crates/paxos/src/auth/replays.rs. */
#ifndef REPLAYS_P4
#define REPLAYS_P4

#include "siphash.p4"

/* The buckets of each holder of a key, a power of two: nobody is forgotten because of another holder's clients. */
#ifndef BUCKETS
#define BUCKETS 1024
#endif
#define HOLDERS 32

/* Which counters there were of a client: the client, the highest one, and bit n of the window: that minus n was there. */
#define CLIENT_OF(seen) seen[175:112]
#define HIGHEST_OF(seen) seen[111:64]
#define WINDOW_OF(seen) seen[63:0]

/* Clients that a bucket remembers. */
#define EACH_WAY(DO) DO(0, ways0, way0) DO(1, ways1, way1) DO(2, ways2, way2) DO(3, ways3, way3)
const bit<8> NO_WAY = 4;

#define LOAD_WAY(i, ways, way) ways.read(way, at);
#define FIND_WAY(i, ways, way)                                   \
    if (place == NO_WAY && CLIENT_OF(way) == hdr.wire.client) {  \
        place = i;                                               \
        highest = HIGHEST_OF(way);                               \
        window = WINDOW_OF(way);                                 \
    }
#define IS_OLDER(i, ways, way)          \
    if (HIGHEST_OF(way) < oldest) {     \
        place = i;                      \
        oldest = HIGHEST_OF(way);       \
    }
#define STORE_WAY(i, ways, way)                                        \
    if (place == i) {                                                  \
        ways.write(at, hdr.wire.client ++ highest ++ window);          \
    }

/* Takes each counter of a client once: 0 or a reason. The packet is signed. [M-REPLAYED] */
control admit(inout headers_t hdr, in metadata_t m, inout bit<16> refused) {
    register<bit<176>>(HOLDERS * BUCKETS) ways0;
    register<bit<176>>(HOLDERS * BUCKETS) ways1;
    register<bit<176>>(HOLDERS * BUCKETS) ways2;
    register<bit<176>>(HOLDERS * BUCKETS) ways3;
    /* No counter of a client that was forgotten here is higher. */
    register<bit<48>>(HOLDERS * BUCKETS) forgottens;

    bit<64> mixed;
    bit<32> at;
    bit<176> way0;
    bit<176> way1;
    bit<176> way2;
    bit<176> way3;
    bit<48> forgotten;
    bit<8> place;
    bit<48> highest;
    bit<64> window;
    bit<48> apart;
    bit<64> its_bit;
    bit<48> oldest;

    action find() {
        mixed = hdr.wire.client * 0x9e3779b97f4a7c15;
        at = (bit<32>) m.signer * BUCKETS + (mixed[63:32] & (BUCKETS - 1));
        EACH_WAY(LOAD_WAY)
        forgottens.read(forgotten, at);
    }

    apply {
        find();
        place = NO_WAY;
        /* Of a client that isn't remembered nothing is known but that none of its newer counters was there. */
        highest = forgotten;
        window = 0xffffffffffffffff;
        EACH_WAY(FIND_WAY)

        /* Counters may overtake one another on their way, but not by far. */
        if (hdr.tag.counter > highest) {
            apart = hdr.tag.counter - highest;
            window = apart < 64 ? window << (bit<8>) apart : 0;
            window = window | 1;
            highest = hdr.tag.counter;
        } else {
            apart = highest - hdr.tag.counter;
            its_bit = apart < 64 ? (bit<64>) 1 << (bit<8>) apart : 0;
            if (its_bit == 0 || (window & its_bit) != 0) {
                refused = REASON_REPLAYED;
            }
            window = window | its_bit;
        }

        if (refused == 0) {
            if (place == NO_WAY) {
                /* Counters follow the time, so who has the lowest has been silent longest. */
                place = 0;
                oldest = HIGHEST_OF(way0);
                EACH_WAY(IS_OLDER)
                if (oldest > forgotten) {
                    forgottens.write(at, oldest);
                }
            }
            EACH_WAY(STORE_WAY)
        }
    }
}

#endif
