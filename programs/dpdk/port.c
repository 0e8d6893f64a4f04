// SPDX-License-Identifier: Apache-2.0
/* What nodes of the DPDK plane need of DPDK. Its bursts and buffers are inline functions, so they have to be
 * compiled; here they become functions that crates/dpdk finds in this library by name. Whoever changes one counts
 * INTERFACE up, there too.
 *
 * The functions about a port are for one thread at a time. */
#include <errno.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <rte_alarm.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_lcore.h>
#include <rte_mbuf.h>

#define INTERFACE 2

/* Frames that wait at a card, in each direction. */
#define RING 1024
/* What rings, bursts and the threads' caches hold at most, one less than a power of two. */
#define BUFFERS 4095
#define CACHE 256
/* Frames that one call takes at most. */
#define BURST 32u

/* A buffer with a frame in it, or with room for one. */
struct wp_frame {
	struct rte_mbuf *buffer;
	uint8_t *data;
	/* Of the frame, or of the room. */
	uint32_t len;
	uint32_t flags;
};

/* The card has found the checksums right, or one of them wrong. */
#define FRAME_RIGHT 1u
#define FRAME_WRONG 2u
/* It takes more than one buffer: there is nothing to look at. */
#define FRAME_LONG 4u

struct wp_opened {
	uint8_t mac[6];
	uint16_t mtu;
	char driver[64];
};

struct wp_port {
	uint16_t id;
	struct rte_mempool *pool;
	/* It looks for its peer when it starts, and not again. */
	bool seeks;
	bool runs;
	bool was_up;
	/* How often it was found down since it has started. */
	uint32_t downs;
	/* What apart() had done is over. */
	bool done;
};

/* After so many it starts anew. */
#define MAX_DOWNS 4

uint32_t wp_interface(void);
int wp_start(int argc, char **argv);
const char *wp_why(int error);
int wp_find(const char *name);
int wp_next(int after, char *name, size_t room);
struct wp_port *wp_open(uint16_t id, uint16_t room, struct wp_opened *opened, int *error);
void wp_close(struct wp_port *port);
uint32_t wp_receive(struct wp_port *port, struct wp_frame *frames, uint32_t n);
uint32_t wp_take(struct wp_port *port, struct wp_frame *frames, uint32_t n);
uint32_t wp_send(struct wp_port *port, struct wp_frame *frames, uint32_t n);
uint32_t wp_renew(struct wp_port *port, struct wp_frame *frames, uint32_t n);
void wp_release(struct wp_frame *frames, uint32_t n);
int wp_is_up(struct wp_port *port);
uint64_t wp_missed(struct wp_port *port);

uint32_t wp_interface(void)
{
	return INTERFACE;
}

/* 0 or a negative error. Once in a process. */
int wp_start(int argc, char **argv)
{
	return rte_eal_init(argc, argv) < 0 ? -rte_errno : 0;
}

const char *wp_why(int error)
{
	return rte_strerror(error);
}

/* The number of the port of this name; negative = there is none. */
int wp_find(const char *name)
{
	uint16_t id;

	return rte_eth_dev_get_port_by_name(name, &id) == 0 ? id : -1;
}

/* The number and the name of the next port after one, -1 for the first; negative = there is none. */
int wp_next(int after, char *name, size_t room)
{
	char whole[RTE_ETH_NAME_MAX_LEN];
	uint16_t id = rte_eth_find_next((uint16_t)(after + 1));

	if (id >= RTE_MAX_ETHPORTS || rte_eth_dev_get_name_by_port(id, whole) != 0)
		return -1;
	strncpy(name, whole, room - 1);
	name[room - 1] = 0;
	return id;
}

static int begin(struct wp_port *port, uint16_t room, struct wp_opened *opened)
{
	uint64_t checked = RTE_ETH_RX_OFFLOAD_IPV4_CKSUM | RTE_ETH_RX_OFFLOAD_UDP_CKSUM;
	uint16_t received = RING, sent = RING;
	struct rte_eth_conf conf = { 0 };
	struct rte_eth_dev_info info;
	struct rte_ether_addr mac;
	char name[32];
	int error;

	error = rte_eth_dev_info_get(port->id, &info);
	if (error)
		return error;
	if ((info.rx_offload_capa & checked) == checked)
		conf.rxmode.offloads = checked;
	error = rte_eth_dev_configure(port->id, 1, 1, &conf);
	if (error)
		return error;
	error = rte_eth_dev_adjust_nb_rx_tx_desc(port->id, &received, &sent);
	if (error)
		return error;
	snprintf(name, sizeof(name), "wirepaxos-%u", port->id);
	port->pool = rte_pktmbuf_pool_create(name, BUFFERS, CACHE, 0, RTE_PKTMBUF_HEADROOM + room,
					     rte_eth_dev_socket_id(port->id));
	if (!port->pool)
		return -rte_errno;
	error = rte_eth_rx_queue_setup(port->id, 0, received, rte_eth_dev_socket_id(port->id), NULL,
				       port->pool);
	if (error)
		return error;
	error = rte_eth_tx_queue_setup(port->id, 0, sent, rte_eth_dev_socket_id(port->id), NULL);
	if (error)
		return error;
	error = rte_eth_macaddr_get(port->id, &mac);
	if (error)
		return error;
	memcpy(opened->mac, mac.addr_bytes, sizeof(opened->mac));
	if (rte_eth_dev_get_mtu(port->id, &opened->mtu) != 0)
		opened->mtu = RTE_ETHER_MTU;
	strncpy(opened->driver, info.driver_name, sizeof(opened->driver) - 1);
	port->seeks = strcmp(info.driver_name, "net_memif") == 0;
	error = rte_eth_dev_start(port->id);
	port->runs = !error;
	if (error && !port->seeks)
		return error;
	/* For questions of IPv6 about who has an address. Some ports take everything anyway. */
	(void)rte_eth_allmulticast_enable(port->id);
	return 0;
}

/* Buffers have `room` for a frame. NULL = there is an error, and nothing is kept. */
struct wp_port *wp_open(uint16_t id, uint16_t room, struct wp_opened *opened, int *error)
{
	struct wp_port *port = calloc(1, sizeof(*port));

	if (!port) {
		*error = -ENOMEM;
		return NULL;
	}
	port->id = id;
	memset(opened, 0, sizeof(*opened));
	/* Buffers are slower for a thread that DPDK doesn't know. */
	if (rte_lcore_id() == LCORE_ID_ANY)
		(void)rte_thread_register();
	*error = begin(port, room, opened);
	if (*error) {
		rte_mempool_free(port->pool);
		free(port);
		return NULL;
	}
	return port;
}

/* Does something to a port that takes its connection down. DPDK's interrupt thread does so, too, without a lock, when
 * memif's peer leaves: at the same time both would free the same memory. So it is done in that thread. */
static void apart(struct wp_port *port, rte_eal_alarm_callback action)
{
	port->done = false;
	if (!port->seeks || rte_eal_alarm_set(1, action, port) != 0) {
		action(port);
		return;
	}
	while (!__atomic_load_n(&port->done, __ATOMIC_ACQUIRE))
		sched_yield();
}

static void end(void *arg)
{
	struct wp_port *port = arg;

	(void)rte_eth_dev_stop(port->id);
	(void)rte_eth_dev_close(port->id);
	__atomic_store_n(&port->done, true, __ATOMIC_RELEASE);
}

/* The port's frames are released before. */
void wp_close(struct wp_port *port)
{
	apart(port, end);
	rte_mempool_free(port->pool);
	free(port);
}

static uint32_t checked(const struct rte_mbuf *buffer)
{
	uint64_t ip = buffer->ol_flags & RTE_MBUF_F_RX_IP_CKSUM_MASK;
	uint64_t udp = buffer->ol_flags & RTE_MBUF_F_RX_L4_CKSUM_MASK;

	if (ip == RTE_MBUF_F_RX_IP_CKSUM_BAD || udp == RTE_MBUF_F_RX_L4_CKSUM_BAD)
		return FRAME_WRONG;
	/* IPv6 has no checksum of its own, about which a card could say anything. */
	return udp == RTE_MBUF_F_RX_L4_CKSUM_GOOD ? FRAME_RIGHT : 0;
}

uint32_t wp_receive(struct wp_port *port, struct wp_frame *frames, uint32_t n)
{
	struct rte_mbuf *buffers[BURST];
	uint16_t got = 0;

	if (likely(port->runs))
		got = rte_eth_rx_burst(port->id, 0, buffers, (uint16_t)RTE_MIN(n, BURST));
	for (uint16_t i = 0; i < got; i++) {
		struct rte_mbuf *buffer = buffers[i];
		struct wp_frame *frame = &frames[i];

		frame->buffer = buffer;
		frame->data = rte_pktmbuf_mtod(buffer, uint8_t *);
		frame->len = buffer->nb_segs == 1 ? buffer->data_len : 0;
		frame->flags = buffer->nb_segs == 1 ? checked(buffer) : FRAME_LONG;
		rte_prefetch0(frame->data);
	}
	return got;
}

static void make_fresh(struct wp_frame *frame, struct rte_mbuf *buffer)
{
	frame->buffer = buffer;
	frame->data = rte_pktmbuf_mtod(buffer, uint8_t *);
	frame->len = rte_pktmbuf_tailroom(buffer);
	frame->flags = 0;
}

/* All of them, or none. */
uint32_t wp_take(struct wp_port *port, struct wp_frame *frames, uint32_t n)
{
	struct rte_mbuf *buffers[BURST];

	n = RTE_MIN(n, BURST);
	if (rte_pktmbuf_alloc_bulk(port->pool, buffers, n) != 0)
		return 0;
	for (uint32_t i = 0; i < n; i++)
		make_fresh(&frames[i], buffers[i]);
	return n;
}

/* Makes those that have come as good as taken ones: that many, the first ones from then on. A driver may have lent a
 * buffer that isn't like the port's own; such a one is given back. */
uint32_t wp_renew(struct wp_port *port, struct wp_frame *frames, uint32_t n)
{
	uint32_t kept = 0;

	for (uint32_t i = 0; i < n; i++) {
		struct rte_mbuf *buffer = frames[i].buffer;

		if (unlikely(buffer->pool != port->pool || !RTE_MBUF_DIRECT(buffer) ||
			     rte_mbuf_refcnt_read(buffer) != 1 || buffer->nb_segs != 1)) {
			rte_pktmbuf_free(buffer);
			continue;
		}
		rte_pktmbuf_reset(buffer);
		make_fresh(&frames[kept++], buffer);
	}
	return kept;
}

/* How many have left. The others are lost, and all are the port's again. */
uint32_t wp_send(struct wp_port *port, struct wp_frame *frames, uint32_t n)
{
	struct rte_mbuf *buffers[BURST];
	uint16_t sent = 0;

	n = RTE_MIN(n, BURST);
	for (uint32_t i = 0; i < n; i++) {
		buffers[i] = frames[i].buffer;
		buffers[i]->data_len = (uint16_t)frames[i].len;
		buffers[i]->pkt_len = frames[i].len;
	}
	if (likely(port->runs))
		sent = rte_eth_tx_burst(port->id, 0, buffers, (uint16_t)n);
	rte_pktmbuf_free_bulk(buffers + sent, n - sent);
	return sent;
}

void wp_release(struct wp_frame *frames, uint32_t n)
{
	struct rte_mbuf *buffers[BURST];

	n = RTE_MIN(n, BURST);
	for (uint32_t i = 0; i < n; i++)
		buffers[i] = frames[i].buffer;
	/* Those that have left are NULL. */
	rte_pktmbuf_free_bulk(buffers, n);
}

static void begin_anew(void *arg)
{
	struct wp_port *port = arg;

	if (port->runs)
		(void)rte_eth_dev_stop(port->id);
	port->runs = rte_eth_dev_start(port->id) == 0;
	__atomic_store_n(&port->done, true, __ATOMIC_RELEASE);
}

static void seek(struct wp_port *port)
{
	if (port->runs && !port->was_up && ++port->downs < MAX_DOWNS)
		return;
	apart(port, begin_anew);
	port->was_up = false;
	port->downs = 0;
}

/* Whether somebody is at the other end. A port that seeks its peer begins to do so again where nobody is; as long as
 * it is asked now and then, it finds one that comes back. */
int wp_is_up(struct wp_port *port)
{
	struct rte_eth_link link = { 0 };

	if (port->runs)
		(void)rte_eth_link_get_nowait(port->id, &link);
	if (link.link_status == RTE_ETH_LINK_UP)
		port->was_up = true;
	else if (port->seeks)
		seek(port);
	return link.link_status == RTE_ETH_LINK_UP;
}

/* Frames that had come, and found no room. */
uint64_t wp_missed(struct wp_port *port)
{
	struct rte_eth_stats stats = { 0 };

	(void)rte_eth_stats_get(port->id, &stats);
	return stats.imissed + stats.rx_nombuf;
}
