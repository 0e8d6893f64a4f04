// SPDX-License-Identifier: Apache-2.0
/* What scripts may call, in a Redis server: the library is also a module of it (MODULE LOAD), which sees each command of a
 * script before it is executed.
 *
 *   MODULE LOAD preload.so PARTITION PARTITIONS NAME=KIND...
 *
 *   r   reads, and answers the same at all replicas
 *   w   may change something
 *   s   answers in the order of a table, which differs: it is answered in the order of the bytes instead
 *   o   SORT: with BY and ALPHA equal weights are in the order of a table; the rest is as 'w'
 *   c   COPY: not into another database; the rest is as 'w'
 *   i   XINFO: STREAM tells how a stream is stored; the rest is as 'r'
 *   m   MEMORY: USAGE is answered with an estimate from the value's length; the rest is refused
 *   x   is refused
 *   u   isn't known to all servers of the group, so this one doesn't know it either
 *
 * A name that isn't among them is unknown to the server, too, which says so. A key of another partition is refused, as by a
 * node of a Redis Cluster.
 *
 * A script that is refused something before it has called a 'w' gets an error, which it may handle. Later that would leave
 * half of the script's work: the library ends the server then, and says which command it was. Whoever runs the server starts
 * another one, which has executed nothing of it.
 */

/* The parts of redismodule.h that are needed here. Servers give these functions by their names. */
typedef struct RedisModuleCtx Ctx;
typedef struct RedisModuleString String;
typedef struct RedisModuleCallReply Reply;
typedef struct RedisModuleCommandFilterCtx FilterCtx;

enum { MODULE_OK, MODULE_ERR, API_VERSION = 1, IN_SCRIPT = 1, NOT_FOR_ITSELF = 1 };
enum { INTEGER_REPLY = 2, ARRAY_REPLY = 3 };

static void (*set_attributes)(Ctx *, const char *, int, int);
static int (*create_command)(Ctx *, const char *, int (*)(Ctx *, String **, int), const char *, int,
			     int, int);
static void *(*register_filter)(Ctx *, void (*)(FilterCtx *), int);
static int (*count_arguments)(FilterCtx *);
static String *(*get_argument)(FilterCtx *, int);
static int (*replace_argument)(FilterCtx *, int, String *);
static String *(*create_string)(Ctx *, const char *, size_t);
static const char *(*bytes_of)(const String *, size_t *);
static int (*get_flags)(Ctx *);
static Reply *(*call)(Ctx *, const char *, const char *, ...);
static int (*type_of)(Reply *);
static size_t (*length_of)(Reply *);
static Reply *(*element_of)(Reply *, size_t);
static const char *(*text_of)(Reply *, size_t *);
static long long (*number_of)(Reply *);
static void (*free_reply)(Reply *);
static int (*answer_reply)(Ctx *, Reply *);
static int (*answer_array)(Ctx *, long);
static int (*answer_map)(Ctx *, long);
static int (*answer_set)(Ctx *, long);
static int (*answer_bytes)(Ctx *, const char *, size_t);
static int (*answer_number)(Ctx *, long long);
static int (*answer_null)(Ctx *);
static int (*answer_error)(Ctx *, const char *);
static int *(*keys_of)(Ctx *, String **, int, int *);
static void (*free_memory)(void *);

static const struct {
	const char *name;
	void *function;
} needed[] = {
	{ "SetModuleAttribs", &set_attributes },
	{ "CreateCommand", &create_command },
	{ "RegisterCommandFilter", &register_filter },
	{ "CommandFilterArgsCount", &count_arguments },
	{ "CommandFilterArgGet", &get_argument },
	{ "CommandFilterArgReplace", &replace_argument },
	{ "CreateString", &create_string },
	{ "StringPtrLen", &bytes_of },
	{ "GetContextFlags", &get_flags },
	{ "Call", &call },
	{ "CallReplyType", &type_of },
	{ "CallReplyLength", &length_of },
	{ "CallReplyArrayElement", &element_of },
	{ "CallReplyStringPtr", &text_of },
	{ "CallReplyInteger", &number_of },
	{ "FreeCallReply", &free_reply },
	{ "ReplyWithCallReply", &answer_reply },
	{ "ReplyWithArray", &answer_array },
	{ "ReplyWithMap", &answer_map },
	{ "ReplyWithSet", &answer_set },
	{ "ReplyWithStringBuffer", &answer_bytes },
	{ "ReplyWithLongLong", &answer_number },
	{ "ReplyWithNull", &answer_null },
	{ "ReplyWithError", &answer_error },
	{ "GetCommandKeys", &keys_of },
	{ "Free", &free_memory },
};

#define NAME_LEN 32
#define PREFIX "wirepaxos."
#define REFUSE PREFIX "refuse"
#define UNKNOWN PREFIX "unknown"
#define MEMORY PREFIX "memory"
#define NOT_LOCAL "ERR Script attempted to access a non local key in a cluster node"
#define SLOTS 16384

struct rule {
	char name[NAME_LEN];
	char kind;
};

/* In the order of their names. */
static struct rule *rules;
static size_t rules_len;
static long own_partition, partitions;
/* The run in which a script has called something that may change anything. */
static uint64_t changed_in;
/* Why the command in hand is refused. */
static char refusal[REFUSAL_LEN];

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct rule *)a)->name, ((const struct rule *)b)->name);
}

static const struct rule *rule_of(String *argument)
{
	struct rule wanted;
	size_t len;
	const char *text = bytes_of(argument, &len);

	if (len >= NAME_LEN)
		return NULL;
	for (size_t i = 0; i < len; i++)
		wanted.name[i] = (char)(text[i] >= 'A' && text[i] <= 'Z' ? text[i] | 0x20 : text[i]);
	wanted.name[len] = 0;
	return bsearch(&wanted, rules, rules_len, sizeof(*rules), by_name);
}

/* Whether one of the arguments from this place on is this word, in any case. */
static int says(FilterCtx *filter, int from, const char *word)
{
	size_t wanted = strlen(word), len;

	for (int i = from; i < count_arguments(filter); i++) {
		const char *text = bytes_of(get_argument(filter, i), &len);

		if (len == wanted && strncasecmp(text, word, len) == 0)
			return 1;
	}
	return 0;
}

/* CRC16 as XMODEM has it, of the key or of what its braces hold: the slot, as in Redis Cluster. */
static long partition_of(const char *key, size_t len)
{
	const char *open = memchr(key, '{', len);
	unsigned int crc = 0;

	if (open) {
		size_t rest = len - (size_t)(open + 1 - key);
		const char *close = memchr(open + 1, '}', rest);

		if (close && close > open + 1) {
			key = open + 1;
			len = (size_t)(close - key);
		}
	}
	for (size_t i = 0; i < len; i++) {
		crc ^= (unsigned int)(unsigned char)key[i] << 8;
		for (int bit = 0; bit < 8; bit++)
			crc = (crc & 0x8000 ? crc << 1 ^ 0x1021 : crc << 1) & 0xffff;
	}
	return (long)(crc % SLOTS) * partitions / SLOTS;
}

static int is_local(FilterCtx *filter)
{
	int len = count_arguments(filter), count = 0, local = 1;
	String **arguments = malloc(sizeof(*arguments) * (size_t)len);
	int *keys;

	if (!arguments)
		die("no memory for a command");
	for (int i = 0; i < len; i++)
		arguments[i] = get_argument(filter, i);
	keys = keys_of(NULL, arguments, len, &count);
	for (int i = 0; keys && i < count; i++) {
		size_t key_len;
		const char *key = bytes_of(arguments[keys[i]], &key_len);

		local &= partition_of(key, key_len) == own_partition;
	}
	if (keys)
		free_memory(keys);
	free(arguments);
	return local;
}

static void put_command(FilterCtx *filter, const char *name)
{
	replace_argument(filter, 0, create_string(NULL, name, strlen(name)));
}

/* Ends the server if the script has changed something. */
static void refuse(FilterCtx *filter, const char *format, const char *name, const char *why)
{
	uint64_t run = load(RUN);

	snprintf(refusal, sizeof(refusal), format, name, why);
	if (run && changed_in == run) {
		memcpy(&clock_file[REFUSAL], refusal, sizeof(refusal));
		__atomic_store_n(&clock_file[REFUSED], run, __ATOMIC_RELEASE);
		_exit(0);
	}
	put_command(filter, REFUSE);
}

/* Why it is refused in scripts, or NULL. */
static const char *why_refused(FilterCtx *filter, const struct rule *rule)
{
	if (rule->kind == 'x')
		return "only what all replicas do alike is, see docs/redis.md";
	if (rule->kind == 'c' && says(filter, 3, "DB"))
		return "there is one database";
	if (rule->kind == 'o' && says(filter, 2, "BY") && says(filter, 2, "ALPHA"))
		return "replicas would order equal weights otherwise; leave out BY or ALPHA";
	if (rule->kind == 'o' && partitions > 1 && (says(filter, 2, "BY") || says(filter, 2, "GET")))
		return "what BY and GET read may be in other partitions";
	if (rule->kind == 'i' && says(filter, 1, "STREAM"))
		return "replicas store a stream otherwise";
	if (rule->kind == 'm' && !says(filter, 1, "USAGE"))
		return "only MEMORY USAGE is";
	return NULL;
}

static void filter_command(FilterCtx *filter)
{
	char name[NAME_LEN];
	const struct rule *rule;
	const char *why;

	if (!(get_flags(NULL) & IN_SCRIPT))
		return;
	rule = rule_of(get_argument(filter, 0));
	if (!rule)
		return;
	if (rule->kind == 'u') {
		put_command(filter, UNKNOWN);
		return;
	}
	why = why_refused(filter, rule);
	for (size_t i = 0; i < NAME_LEN; i++)
		name[i] = (char)(rule->name[i] >= 'a' && rule->name[i] <= 'z' ? rule->name[i] & ~0x20 :
										rule->name[i]);
	if (why) {
		refuse(filter, "ERR %s isn't available in scripts: %s", name, why);
	} else if (partitions > 1 && !is_local(filter)) {
		refuse(filter, NOT_LOCAL "%s%s", "", "");
	} else if (rule->kind == 's') {
		char sorted[sizeof(PREFIX) + NAME_LEN];

		snprintf(sorted, sizeof(sorted), PREFIX "%s", rule->name);
		put_command(filter, sorted);
	} else if (rule->kind == 'm') {
		put_command(filter, MEMORY);
	} else if (!strchr("ri", rule->kind)) {
		changed_in = load(RUN);
	}
}

struct bytes {
	const char *text;
	size_t len;
};

static int by_bytes(const void *a, const void *b)
{
	const struct bytes *x = a, *y = b;
	int order = memcmp(x->text, y->text, x->len < y->len ? x->len : y->len);

	return order ? order : (x->len > y->len) - (x->len < y->len);
}

/* Answers the elements in the order of their bytes; with a step of 2 they are pairs, in the order of the first ones. */
static void answer_sorted(Ctx *ctx, Reply *reply, size_t step)
{
	size_t len = length_of(reply);
	struct bytes *all = malloc(sizeof(*all) * (len + 1));

	if (!all)
		die("no memory for an answer to a script");
	for (size_t i = 0; i < len; i++)
		all[i].text = text_of(element_of(reply, i), &all[i].len);
	qsort(all, len / step, step * sizeof(*all), by_bytes);
	for (size_t i = 0; i < len; i++)
		answer_bytes(ctx, all[i].text, all[i].len);
	free(all);
}

/* Executes the command of which this one has the name behind the prefix. */
static int execute_sorted(Ctx *ctx, String **argv, int argc)
{
	size_t len;
	const char *name = bytes_of(argv[0], &len) + strlen(PREFIX);
	Reply *reply = call(ctx, name, "Ev", argv + 1, (size_t)(argc - 1));

	if (!reply)
		return answer_error(ctx, "ERR it can't be executed in a script");
	if (type_of(reply) != ARRAY_REPLY) {
		answer_reply(ctx, reply);
	} else if (strcmp(name, "hgetall") == 0) {
		answer_map(ctx, (long)length_of(reply) / 2);
		answer_sorted(ctx, reply, 2);
	} else {
		int is_list = strcmp(name, "keys") == 0 || name[0] == 'h';

		(is_list ? answer_array : answer_set)(ctx, (long)length_of(reply));
		answer_sorted(ctx, reply, 1);
	}
	free_reply(reply);
	return MODULE_OK;
}

/* The number that a command answers for this key, or 0. */
static long long number_for(Ctx *ctx, const char *command, String *key)
{
	Reply *reply = call(ctx, command, "Es", key);
	long long number = reply && type_of(reply) == INTEGER_REPLY ? number_of(reply) : 0;

	if (reply)
		free_reply(reply);
	return number;
}

/* Executes MEMORY USAGE. Replicas store equal values in different ways, so this doesn't measure: it counts the bytes of a
 * string, or 64 for each element. */
static int execute_memory(Ctx *ctx, String **argv, int argc)
{
	enum { OVERHEAD = 64, ELEMENT = 64 };
	static const char *const lengths[] = { "LLEN", "SCARD", "HLEN", "ZCARD", "XLEN" };
	long long bytes = OVERHEAD;

	if (argc < 3)
		return answer_error(ctx, "ERR wrong number of arguments for 'memory|usage' command");
	if (!number_for(ctx, "EXISTS", argv[2]))
		return answer_null(ctx);
	bytes += number_for(ctx, "STRLEN", argv[2]);
	for (size_t i = 0; i < sizeof(lengths) / sizeof(*lengths); i++)
		bytes += ELEMENT * number_for(ctx, lengths[i], argv[2]);
	return answer_number(ctx, bytes);
}

static int execute_refuse(Ctx *ctx, String **argv, int argc)
{
	(void)argv;
	(void)argc;
	return answer_error(ctx, refusal[0] ? refusal : "ERR it isn't available");
}

static int take_rules(Ctx *ctx, String **argv, int argc)
{
	rules = malloc(sizeof(*rules) * (size_t)argc);
	if (!rules || argc < 2)
		return MODULE_ERR;
	own_partition = strtol(bytes_of(argv[0], NULL), NULL, 10);
	partitions = strtol(bytes_of(argv[1], NULL), NULL, 10);
	for (int i = 2; i < argc; i++) {
		char command[sizeof(PREFIX) + NAME_LEN];
		struct rule *rule = &rules[rules_len];

		if (sscanf(bytes_of(argv[i], NULL), "%31[^=]=%c", rule->name, &rule->kind) != 2)
			return MODULE_ERR;
		rules_len++;
		snprintf(command, sizeof(command), PREFIX "%s", rule->name);
		if (rule->kind == 's' &&
		    create_command(ctx, command, execute_sorted, "readonly", 0, 0, 0) != MODULE_OK)
			return MODULE_ERR;
	}
	qsort(rules, rules_len, sizeof(*rules), by_name);
	return MODULE_OK;
}

/* The server calls it by this name. */
int RedisModule_OnLoad(Ctx *ctx, String **argv, int argc);

int RedisModule_OnLoad(Ctx *ctx, String **argv, int argc)
{
	int (*get_api)(const char *, void *) = (int (*)(const char *, void *))((void **)ctx)[0];

	for (size_t i = 0; i < sizeof(needed) / sizeof(*needed); i++) {
		char name[64];

		snprintf(name, sizeof(name), "RedisModule_%s", needed[i].name);
		if (get_api(name, needed[i].function) != MODULE_OK) {
			fprintf(stderr, "wirepaxos preload: the server has no %s\n", name);
			return MODULE_ERR;
		}
	}
	set_attributes(ctx, "wirepaxos", 1, API_VERSION);
	if (!clock_file || take_rules(ctx, argv, argc) != MODULE_OK ||
	    create_command(ctx, REFUSE, execute_refuse, "readonly", 0, 0, 0) != MODULE_OK ||
	    create_command(ctx, MEMORY, execute_memory, "readonly", 0, 0, 0) != MODULE_OK ||
	    !register_filter(ctx, filter_command, NOT_FOR_ITSELF))
		return MODULE_ERR;
	return MODULE_OK;
}
