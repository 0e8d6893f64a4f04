/* SPDX-License-Identifier: Apache-2.0 */
/* The boot nonce: the name of a memory. It lies in registers like everything else that it names, and goes when that goes, so a
 * memory that was lost never keeps its name. Neither of its halves is ever 0. */
#ifndef NONCE_P4
#define NONCE_P4

#define NONCE_HALF(register, half)                                                       \
    WORDS(register, 32, bit<1>, 1, 0)                                                    \
    ASK_WORD(register, begin_##register, 32, bit<1>, bit<1>,                             \
        said = 0;                                                                        \
        if (value == 0 || value == half) {                                               \
            value = half;                                                                \
            said = 1;                                                                    \
        })                                                                               \
    ASK_WORD(register, compare_##register, 32, bit<1>, bit<1>,                           \
        said = 0;                                                                        \
        if (value == half) { said = 1; })                                                \
    ASK_WORD(register, show_##register, 32, bit<1>, bit<32>, said = value;)

#define NONCES                                                                           \
    NONCE_HALF(nonces_high, hdr.order.nonce[63:32])                                      \
    NONCE_HALF(nonces_low, hdr.order.nonce[31:0])

#endif
