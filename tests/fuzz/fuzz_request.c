/* fuzz_request.c - any requests in any order, as if read from /dev/fuse: nothing breaks, each is
 * answered once, and nobody leaves the source.
 *
 * The bytes of an input are a program that builds requests: of every opcode, with identities and
 * handles that were given out or are invented, with names that are no names and sizes that lie;
 * a few are cut, lengthened or changed anywhere. The real receive loop, operations, cache and
 * flusher serve them on a small directory in memory. Only the reading from and writing to the
 * kernel are replaced. Beside the source lies a file that must stay unread and untouched.
 */
#include "tests/fuzz/fuzz.h"

/* ---- the program, with its doors to the kernel replaced ---- */

int pacefs_main(int argc, char **argv);
#define main pacefs_main
#define serve serve_mount
#include "fuse/main.c" /* NOLINT: its composition is what is wanted */
#undef serve
#undef main

#include <ftw.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/uio.h>

static ssize_t kernel_writev(int fd, const struct iovec *iov, int count);
static ssize_t kernel_write(int fd, const void *data, size_t bytes);
#define writev(fd, iov, count) kernel_writev(fd, iov, count)
#define write(fd, data, bytes) kernel_write(fd, data, bytes)
#include "fuse/session.c" /* NOLINT: its static functions are what is tested */
#undef write
#undef writev

enum {
	REQUESTS_MOST = 40,
	MESSAGE_MOST = 192 * 1024,
	KNOWN_MOST = 24, /* identities and handles remembered */
	CACHE_BYTES = 4 << 20,
	MAX_WRITE = 64 * 1024,
	ANSWER_MOST_S = 5, /* nothing may take so long on a source in memory */
	SOURCE_MB = 64,
	IMAGE_BYTES = 256 * 1024,
};

#define CANARY "canary: nobody reads this"

/* ---- the kernel's side ---- */

struct known_open {
	uint64_t fh, nodeid;
	bool dir;
};

static struct {
	pthread_mutex_t lock;
	pthread_cond_t answered;
	uint64_t unique; /* of the last request */
	uint32_t opcode;
	unsigned nr_answers; /* to it */
	int error;
	_Alignas(8) unsigned char body[4096]; /* start of the answer */
	size_t bytes;
	uint64_t nodeids[KNOWN_MOST];
	unsigned nr_nodeids;
	struct known_open opens[KNOWN_MOST];
	unsigned nr_opens;
} kernel = {.lock = PTHREAD_MUTEX_INITIALIZER, .answered = PTHREAD_COND_INITIALIZER};

static void check_unread(const struct iovec *iov, int count)
{
	for (int i = 0; i < count; i++)
		CHECK(!memmem(iov[i].iov_base, iov[i].iov_len, CANARY, strlen(CANARY)),
			"opcode %u gave out what is not in the source", kernel.opcode);
}

static ssize_t kernel_writev(int fd, const struct iovec *iov, int count)
{
	const struct fuse_out_header *out = iov[0].iov_base;
	size_t total = 0;

	for (int i = 0; i < count; i++)
		total += iov[i].iov_len;
	CHECK(iov[0].iov_len >= sizeof(*out) && out->len == total, "length %u of %zu", out->len,
		total);
	CHECK(out->error <= 0 && out->error > -512, "error %d", out->error);
	pthread_mutex_lock(&kernel.lock);
	check_unread(iov, count);
	if (out->unique == kernel.unique) {
		kernel.nr_answers++;
		kernel.error = out->error;
		kernel.bytes = 0;
		for (int i = 1; i < count; i++) {
			size_t n = sizeof(kernel.body) - kernel.bytes;
			n = iov[i].iov_len < n ? iov[i].iov_len : n;
			memcpy(kernel.body + kernel.bytes, iov[i].iov_base, n);
			kernel.bytes += n;
		}
		pthread_cond_broadcast(&kernel.answered);
	}
	pthread_mutex_unlock(&kernel.lock);
	return (ssize_t)total;
}

static ssize_t kernel_write(int fd, const void *data, size_t bytes)
{
	struct iovec iov = {.iov_base = (void *)(uintptr_t)data, .iov_len = bytes};

	return kernel_writev(fd, &iov, 1);
}

static void remember_node(uint64_t nodeid)
{
	if (nodeid && kernel.nr_nodeids < KNOWN_MOST)
		kernel.nodeids[kernel.nr_nodeids++] = nodeid;
}

static void remember_open(uint64_t fh, uint64_t nodeid, bool dir)
{
	if (kernel.nr_opens < KNOWN_MOST)
		kernel.opens[kernel.nr_opens++] =
			(struct known_open){.fh = fh, .nodeid = nodeid, .dir = dir};
}

/* With the lock, after an answer without an error. */
static void learn(const struct fuse_in_header *in)
{
	const struct fuse_entry_out *entry = (const void *)kernel.body;
	const struct fuse_open_out *open = (const void *)kernel.body;

	switch (in->opcode) {
	case FUSE_LOOKUP:
	case FUSE_MKNOD:
	case FUSE_MKDIR:
	case FUSE_SYMLINK:
	case FUSE_LINK:
		remember_node(entry->nodeid);
		break;
	case FUSE_CREATE:
		remember_node(entry->nodeid);
		open = (const void *)(kernel.body + sizeof(*entry));
		remember_open(open->fh, entry->nodeid, false);
		break;
	case FUSE_OPEN:
	case FUSE_OPENDIR:
		remember_open(open->fh, in->nodeid, in->opcode == FUSE_OPENDIR);
		break;
	default:
		break;
	}
}

/* ---- requests ---- */

struct message {
	unsigned char *at; /* MESSAGE_MOST bytes */
	size_t bytes;
	struct input *in;
	struct known_open open; /* which this one is about, if any */
};

static void put(struct message *m, const void *data, size_t bytes)
{
	if (bytes > MESSAGE_MOST - m->bytes)
		bytes = MESSAGE_MOST - m->bytes;
	memcpy(m->at + m->bytes, data, bytes);
	m->bytes += bytes;
}

static uint64_t pick_number(struct input *in)
{
	static const uint64_t special[] = {0, 1, 2, 4095, 4096, 4097, 65536, 131072, 1 << 20,
		INT32_MAX, UINT32_MAX, INT64_MAX - 4096, INT64_MAX - 1, INT64_MAX,
		(uint64_t)INT64_MAX + 1, UINT64_MAX - 4095, UINT64_MAX};
	enum { NR = sizeof(special) / sizeof(special[0]) };
	uint8_t tag = input_byte(in);

	return tag < NR ? special[tag] : tag < 128 ? tag * 100u : input_integer(in);
}

static const char *pick_name(struct input *in, char *room, size_t size)
{
	static const char *const names[] = {"a", "d", "b", "l", "p", "n1", "n2", "n3", "..",
		".", "", "../outside", "/etc", "d/b", ".pacefs", "..a", "a\xff\n"};
	enum { NR = sizeof(names) / sizeof(names[0]) };
	uint8_t tag = input_byte(in);

	if (tag < 224)
		return names[tag % NR];
	if (tag < 240) {
		size_t length = tag < 228 ? 255 : tag < 236 ? 256 : 1100;
		memset(room, 'x', length);
		room[length] = '\0';
		return room;
	}
	size_t n = input_byte(in) % (size - 1);
	for (size_t i = 0; i < n; i++)
		room[i] = (char)input_byte(in);
	room[n] = '\0';
	return room;
}

static void put_name(struct message *m)
{
	char room[1200];
	const char *name = pick_name(m->in, room, sizeof(room));

	put(m, name, strlen(name) + 1);
}

static void put_xattr_name(struct message *m)
{
	static const char *const names[] = {"user.a", "user.pacefs.stats",
		"user.pacefs.dirty_bytes", "user.pacefs.dirty_centisecs", "user.pacefs.flush",
		"user.pacefs.law", "user.pacefs.", "user.pacefs.dirty_background_centisecs",
		"user.pacefs.nonsense", "security.capability", "system.posix_acl_access",
		"system.posix_acl_default", "trusted.x", "user.", "", "nonsense"};
	const char *name = names[input_byte(m->in) % (sizeof(names) / sizeof(names[0]))];

	put(m, name, strlen(name) + 1);
}

/* Mostly one that was given out. */
static uint64_t pick_nodeid(struct input *in)
{
	uint8_t tag = input_byte(in);

	if (tag < 200 && kernel.nr_nodeids)
		return kernel.nodeids[tag % kernel.nr_nodeids];
	if (tag < 208)
		return tag % 4; /* none, the root, the control file, a raw file */
	if (tag < 224 && kernel.nr_nodeids)
		return kernel.nodeids[tag % kernel.nr_nodeids] ^ 1ull << input_below(in, 64);
	return pick_number(in);
}

/* Mostly handle and identity belong together. */
static void pick_open(struct message *m)
{
	uint8_t tag = input_byte(m->in);

	m->open = (struct known_open){0};
	if (tag < 240 && kernel.nr_opens)
		m->open = kernel.opens[tag % kernel.nr_opens];
	if (tag >= 224)
		m->open.nodeid = pick_nodeid(m->in);
	if (tag >= 232)
		m->open.fh = tag < 236 ? m->open.fh ^ 1ull << input_below(m->in, 64)
				       : pick_number(m->in);
}

#define PUT(m, type, ...)                                                                      \
	put(m, &(struct type){__VA_ARGS__}, sizeof(struct type)) /* a struct of the protocol */

static void put_setattr(struct message *m)
{
	struct input *in = m->in;

	PUT(m, fuse_setattr_in, .valid = (uint32_t)input_bytes(in, 2), .fh = m->open.fh,
		.size = pick_number(in), .mode = (uint32_t)input_bytes(in, 2),
		.uid = input_below(in, 3) * 1000, .gid = input_below(in, 3) * 1000,
		.mtime = pick_number(in), .mtimensec = (uint32_t)pick_number(in));
}

static void put_write(struct message *m)
{
	static const unsigned char zeroes[MAX_WRITE + 4096];
	struct input *in = m->in;
	uint32_t size = (uint32_t)(pick_number(in) % (MAX_WRITE + 4096));

	PUT(m, fuse_write_in, .fh = m->open.fh, .offset = pick_number(in), .size = size,
		.write_flags = input_below(in, 8));
	put(m, zeroes, size);
}

static void put_setxattr(struct message *m)
{
	static const char *const values[] = {"1", "0", "pace", "linux", "65536", "10", "300",
		"18446744073709551616", "-1", "64M\n", ""};
	const char *value = values[input_byte(m->in) % (sizeof(values) / sizeof(values[0]))];
	uint32_t lie = input_byte(m->in) < 240 ? 0 : (uint32_t)pick_number(m->in);
	uint32_t head[2] = {(uint32_t)strlen(value) + lie, input_below(m->in, 3)};

	put(m, head, sizeof(head));
	put_xattr_name(m);
	put(m, value, strlen(value));
}

static void put_forgets(struct message *m)
{
	unsigned count = input_below(m->in, 4);
	unsigned lie = input_byte(m->in) < 240 ? 0 : (unsigned)pick_number(m->in);

	PUT(m, fuse_batch_forget_in, .count = count + lie);
	for (unsigned i = 0; i < count; i++)
		PUT(m, fuse_forget_one, .nodeid = pick_nodeid(m->in),
			.nlookup = input_below(m->in, 3));
}

/* What is about an open file or directory, by its handle. */
static bool put_open_body(struct message *m, uint32_t opcode)
{
	struct input *in = m->in;

	switch (opcode) {
	case FUSE_READ:
	case FUSE_READDIR:
	case FUSE_READDIRPLUS:
		PUT(m, fuse_read_in, .fh = m->open.fh, .offset = pick_number(in),
			.size = (uint32_t)pick_number(in));
		return true;
	case FUSE_WRITE:
		put_write(m);
		return true;
	case FUSE_RELEASE:
	case FUSE_RELEASEDIR:
		PUT(m, fuse_release_in, .fh = m->open.fh);
		return true;
	case FUSE_FSYNC:
	case FUSE_FSYNCDIR:
		PUT(m, fuse_fsync_in, .fh = m->open.fh, .fsync_flags = input_below(in, 2));
		return true;
	case FUSE_FLUSH:
		PUT(m, fuse_flush_in, .fh = m->open.fh);
		return true;
	case FUSE_FALLOCATE:
		PUT(m, fuse_fallocate_in, .fh = m->open.fh, .offset = pick_number(in),
			.length = pick_number(in), .mode = input_below(in, 8));
		return true;
	case FUSE_LSEEK:
		PUT(m, fuse_lseek_in, .fh = m->open.fh, .offset = pick_number(in),
			.whence = input_below(in, 6));
		return true;
	case FUSE_COPY_FILE_RANGE: {
		struct known_open from = m->open;
		pick_open(m);
		PUT(m, fuse_copy_file_range_in, .fh_in = from.fh, .off_in = pick_number(in),
			.nodeid_out = m->open.nodeid, .fh_out = m->open.fh,
			.off_out = pick_number(in), .len = pick_number(in));
		m->open = from;
		return true;
	}
	case FUSE_SETATTR:
		put_setattr(m);
		return true;
	default:
		return false;
	}
}

static void put_other_body(struct message *m, uint32_t opcode)
{
	struct input *in = m->in;

	switch (opcode) {
	case FUSE_LOOKUP:
	case FUSE_UNLINK:
	case FUSE_RMDIR:
		put_name(m);
		break;
	case FUSE_SYMLINK:
		put_name(m);
		put_name(m);
		break;
	case FUSE_MKNOD:
		PUT(m, fuse_mknod_in, .mode = (uint32_t)input_bytes(in, 2),
			.rdev = input_below(in, 2));
		put_name(m);
		break;
	case FUSE_MKDIR:
		PUT(m, fuse_mkdir_in, .mode = 0755);
		put_name(m);
		break;
	case FUSE_CREATE:
		PUT(m, fuse_create_in, .flags = (uint32_t)input_bytes(in, 2), .mode = 0100644);
		put_name(m);
		break;
	case FUSE_RENAME:
		PUT(m, fuse_rename_in, .newdir = pick_nodeid(in));
		put_name(m);
		put_name(m);
		break;
	case FUSE_RENAME2:
		PUT(m, fuse_rename2_in, .newdir = pick_nodeid(in), .flags = input_below(in, 8));
		put_name(m);
		put_name(m);
		break;
	case FUSE_LINK:
		PUT(m, fuse_link_in, .oldnodeid = pick_nodeid(in));
		put_name(m);
		break;
	case FUSE_OPEN:
	case FUSE_OPENDIR:
		PUT(m, fuse_open_in, .flags = (uint32_t)input_bytes(in, 2));
		break;
	case FUSE_SETXATTR:
		put_setxattr(m);
		break;
	case FUSE_GETXATTR:
		PUT(m, fuse_getxattr_in, .size = (uint32_t)pick_number(in));
		put_xattr_name(m);
		break;
	case FUSE_LISTXATTR:
		PUT(m, fuse_getxattr_in, .size = (uint32_t)pick_number(in));
		break;
	case FUSE_REMOVEXATTR:
		put_xattr_name(m);
		break;
	case FUSE_FORGET:
		PUT(m, fuse_forget_in, .nlookup = input_below(in, 3));
		break;
	case FUSE_BATCH_FORGET:
		put_forgets(m);
		break;
	case FUSE_INTERRUPT:
		PUT(m, fuse_interrupt_in, .unique = kernel.unique - input_below(in, 4));
		break;
	case FUSE_INIT:
		PUT(m, fuse_init_in, .major = input_below(in, 9),
			.minor = (uint32_t)pick_number(in), .flags = (uint32_t)pick_number(in));
		break;
	default:
		for (unsigned n = input_below(in, 96); n; n--)
			put(m, &(uint8_t){input_byte(in)}, 1);
	}
}

/* A few are cut, lengthened, changed or lie about their length. */
static void spoil(struct message *m)
{
	struct fuse_in_header *head = (void *)m->at;
	struct input *in = m->in;
	uint8_t tag = input_byte(in);

	if (tag >= 232 && tag < 240)
		m->bytes -= (size_t)input_bytes(in, 2) % (m->bytes - sizeof(*head) + 1);
	else if (tag >= 240 && tag < 246)
		for (unsigned n = input_below(in, 40); n; n--)
			put(m, &(uint8_t){input_byte(in)}, 1);
	head->len = (uint32_t)m->bytes;
	if (tag >= 246)
		for (unsigned n = tag - 245; n; n--)
			m->at[(size_t)input_bytes(in, 2) % m->bytes] = input_byte(in);
}

static void build(struct message *m)
{
	static const uint8_t opcodes[] = {1, 1, 1, 2, 3, 4, 4, 5, 6, 8, 9, 10, 11, 12, 13, 14,
		14, 14, 15, 15, 16, 16, 16, 16, 17, 18, 20, 21, 21, 22, 22, 23, 24, 25, 26, 27,
		27, 28, 29, 30, 31, 32, 33, 34, 35, 35, 36, 37, 39, 40, 41, 42, 43, 43, 44, 45,
		46, 47, 47, 48, 50, 51};
	static const uint32_t uids[] = {0, 0, 0, 1000, 65534, UINT32_MAX};
	struct input *in = m->in;
	uint8_t tag = input_byte(in);
	struct fuse_in_header head = {
		.opcode = tag == 255 ? FUSE_DESTROY
			: tag >= 252 ? (uint32_t)pick_number(in)
				     : opcodes[tag % sizeof(opcodes)],
		.uid = uids[input_below(in, 6)],
		.pid = (uint32_t)getpid(),
	};

	pthread_mutex_lock(&kernel.lock);
	head.unique = kernel.unique + 2; /* as the kernel counts */
	m->bytes = sizeof(head);
	pick_open(m);
	head.nodeid = m->open.nodeid;
	if (!put_open_body(m, head.opcode)) {
		head.nodeid = pick_nodeid(in);
		put_other_body(m, head.opcode);
	}
	pthread_mutex_unlock(&kernel.lock);
	memcpy(m->at, &head, sizeof(head));
	spoil(m);
}

/* ---- serving ---- */

static struct reader *reader;

static void receive_message(struct reader *r, const struct message *m)
{
	int count = describe(r);
	size_t done = 0;

	for (int i = 0; i < count && done < m->bytes; i++) {
		size_t n = m->bytes - done;
		n = n < r->iov[i].iov_len ? n : r->iov[i].iov_len;
		memcpy(r->iov[i].iov_base, m->at + done, n);
		done += n;
	}
}

static void await_answer(void)
{
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += ANSWER_MOST_S;
	while (kernel.nr_answers == 0)
		CHECK(pthread_cond_timedwait(&kernel.answered, &kernel.lock, &until) == 0,
			"no answer to opcode %u", kernel.opcode);
}

static void run_request(struct message *m)
{
	const struct fuse_in_header *in = (const void *)m->at;
	struct fuse_in_header sent = *in;

	pthread_mutex_lock(&kernel.lock);
	kernel.unique = in->unique;
	kernel.opcode = in->opcode;
	kernel.nr_answers = 0;
	pthread_mutex_unlock(&kernel.lock);
	refill(reader);
	receive_message(reader, m);
	serve(reader, m->bytes);
	pthread_mutex_lock(&kernel.lock);
	if (request_wants_answer(&sent))
		await_answer();
	CHECK(kernel.nr_answers <= 1, "%u answers to opcode %u", kernel.nr_answers,
		sent.opcode);
	if (kernel.nr_answers && kernel.error == 0)
		learn(&sent);
	pthread_mutex_unlock(&kernel.lock);
}

static void run_init(struct message *m)
{
	struct fuse_in_header head = {.opcode = FUSE_INIT, .unique = 2};

	m->bytes = 0;
	put(m, &head, sizeof(head));
	PUT(m, fuse_init_in, .major = FUSE_KERNEL_VERSION, .minor = 36, .max_readahead = 131072,
		.flags = UINT32_MAX & ~(uint32_t)FUSE_INIT_EXT);
	((struct fuse_in_header *)(void *)m->at)->len = (uint32_t)m->bytes;
	run_request(m);
}

/* libfuse keeps INTERRUPTs of requests that never come. What it keeps of ours would be a request
 * without an answer, which is looked for. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
	return "leak:libfuse3";
}

/* ---- the world ---- */

static char top[PATH_MAX], source[PATH_MAX + 16], image[PATH_MAX + 16], canary[PATH_MAX + 32];
static struct stat canary_before;

static void write_file(const char *path, const char *text)
{
	FILE *f = fopen(path, "w");

	CHECK(f && fputs(text, f) >= 0 && fclose(f) == 0, "%s: %s", path, strerror(errno));
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	if (type == FTW_DP || type == FTW_DNR)
		rmdir(path); /* fails for the source itself when that is a mount */
	else
		unlink(path);
	return 0;
}

static void source_fill(void)
{
	char path[PATH_MAX + 32];

	CHECK(truncate(image, IMAGE_BYTES) == 0, "%s", strerror(errno));
	nftw(source, remove_one, 16, FTW_DEPTH | FTW_PHYS);
	mkdir(source, 0755);
	snprintf(path, sizeof(path), "%s/a", source);
	write_file(path, "the content of a");
	snprintf(path, sizeof(path), "%s/d", source);
	mkdir(path, 0755);
	snprintf(path, sizeof(path), "%s/d/b", source);
	write_file(path, "b");
	snprintf(path, sizeof(path), "%s/l", source);
	CHECK(symlink("../outside/canary", path) == 0, "%s", strerror(errno));
	snprintf(path, sizeof(path), "%s/p", source);
	CHECK(mkfifo(path, 0644) == 0, "%s", strerror(errno));
}

/* In memory and in a namespace of its own, so that nothing of the machine can be hit. */
static void world_make(void)
{
	const char *tmp = getenv("TMPDIR");
	char options[32];

	snprintf(top, sizeof(top), "%s/fuzz-request.XXXXXX", tmp ? tmp : "/tmp");
	CHECK(mkdtemp(top), "%s", strerror(errno));
	snprintf(options, sizeof(options), "size=%dm", SOURCE_MB);
	if (geteuid() == 0)
		CHECK(unshare(CLONE_NEWNS) == 0 &&
				mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
				mount("fuzz", top, "tmpfs", 0, options) == 0 &&
				mount("fuzz", "/run", "tmpfs", 0, options) == 0,
			"%s", strerror(errno));
	snprintf(source, sizeof(source), "%s/source", top);
	snprintf(image, sizeof(image), "%s/image", top);
	write_file(image, "a device");
	snprintf(canary, sizeof(canary), "%s/outside", top);
	CHECK(mkdir(canary, 0755) == 0, "%s", strerror(errno));
	snprintf(canary, sizeof(canary), "%s/outside/canary", top);
	write_file(canary, CANARY);
	CHECK(stat(canary, &canary_before) == 0, "%s", strerror(errno));
}

static void check_untouched(void)
{
	struct stat st;

	CHECK(stat(canary, &st) == 0, "the file outside is gone");
	CHECK(st.st_size == canary_before.st_size && st.st_mode == canary_before.st_mode &&
			st.st_nlink == 1 && st.st_ctim.tv_sec == canary_before.st_ctim.tv_sec &&
			st.st_ctim.tv_nsec == canary_before.st_ctim.tv_nsec,
		"the file outside was touched");
	CHECK(stat(top, &st) == 0 && st.st_nlink == 4, "something is new beside the source");
}

enum { TREE, RAW_IN_DIRECTORY, RAW_AT_ROOT }; /* how the source is shown */

static void mount_make(struct pacefs *p, unsigned shape)
{
	struct stat st;
	char *argv[] = {(char[]){"pacefs"}, shape == TREE ? source : image, (char[]){"/mnt"},
		(char[]){"-f"}, (char[]){"-oio_engine=sync,max_write=64K,cache_size=4M"},
		(char[]){"-oraw"}, NULL};

	memset(p, 0, sizeof(*p));
	memset(&session, 0, sizeof(session));
	CHECK(options_parse(shape == TREE ? 5 : 6, argv, &p->options) == OPTIONS_RUN,
		"options");
	p->raw_at_root = shape == RAW_AT_ROOT;
	p->is_root = geteuid() == 0;
	p->lock = (struct source_lock){.source_fd = -1, .file_fd = -1};
	p->ready_fd = -1;
	p->max_fds = 4; /* so that descriptors are closed and made again */
	int fd = open_source(p, &st);
	CHECK(fd >= 0, "source");
	p->dom.cache_frames = CACHE_BYTES / PAGE_BYTES;
	int ret = domain_init(&p->dom, p->dom.cache_frames, 4 * p->dom.cache_frames);
	CHECK(ret == 0 && prepare_backing(p, fd, &st) == 0, "backing");
	CHECK(nodes_init(p, fd) == 0, "nodes");
	if (p->is_root)
		crash_start(p, &st);
	CHECK(writes_start(p) == 0, "writes");
	p->mount.fuse_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
	CHECK(session_create(p, &pacefs_ops) == 0, "session");
	session.nr_readers = 2; /* one to serve, one to spare: no thread is started */
	reader = calloc(1, sizeof(*reader));
	reader->s = &session;
	reader->epoll_fd = -1;
	reader->linear = aligned_alloc(PAGE_BYTES, linear_bytes(&session));
	current = reader;
}

/* As serve() of main.c ends, for a connection that was cut. */
static void mount_end(struct pacefs *p)
{
	writes_stop(p);
	pacefs_end(p);
	control_stop(p);
	reader_finish(reader);
	session_destroy(p);
	nodes_finish(p);
	device_finish(&p->backing.dev);
	domain_finish(&p->dom);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static unsigned char *room;
	struct input in = {.at = data, .end = data + size};
	struct message m = {.in = &in};

	if (memmem(data, size, CANARY, strlen(CANARY)))
		return 0; /* it is learned from the comparisons, and would be found again */
	if (!room) {
		room = aligned_alloc(PAGE_BYTES, MESSAGE_MOST);
		log_set_level(LOG_LEVEL_NONE);
		ops_thread_init();
		world_make();
	}
	m.at = room;
	source_fill();
	uint8_t kind = input_byte(&in);
	mount_make(&pacefs, kind < 224 ? TREE : kind < 240 ? RAW_IN_DIRECTORY : RAW_AT_ROOT);
	kernel.nr_nodeids = kernel.nr_opens = 0;
	remember_node(NODEID_ROOT);
	kernel.unique = 0;
	if (input_byte(&in) < 250)
		run_init(&m);
	for (unsigned i = 0; i < REQUESTS_MOST && in.at < in.end; i++) {
		build(&m);
		run_request(&m);
	}
	kernel.unique = 0;
	mount_end(&pacefs);
	check_untouched();
	return 0;
}
