/* recover.c - the next start after a kill -9: what was lost, and zeroes nobody wrote. */
#include "backend/state/state.h"

#include "util/log.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/falloc.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Lines about files in one start: more than a screen is read by nobody. */
enum { TOLD_MOST = 64 };

struct recovery {
	const struct state_source *src;
	struct state_loss *loss;
	unsigned told;
};

/* ---- finding the file ---- */

static int open_by_handle(const struct recovery *rec, const struct state_who *who, int flags)
{
	struct {
		struct file_handle head;
		unsigned char room[STATE_HANDLE_MAX];
	} h = {.head.handle_bytes = who->handle_bytes, .head.handle_type = who->handle_type};

	if (who->handle_bytes == 0)
		return -ENOENT;
	memcpy(h.head.f_handle, who->handle, who->handle_bytes);
	int fd = open_by_handle_at(rec->src->root_fd, &h.head, flags);
	return fd < 0 ? -errno : fd;
}

static int open_by_name(const struct recovery *rec, const struct state_who *who, int flags)
{
	struct open_how how = {
		.flags = (unsigned)flags,
		.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV,
	};
	struct stat st;

	if (!who->name[0])
		return -ENOENT;
	int fd = (int)syscall(SYS_openat2, rec->src->root_fd, who->name, &how, sizeof(how));
	if (fd < 0)
		return -errno;
	if (fstat(fd, &st) == 0 && st.st_ino == who->ino)
		return fd;
	close(fd); /* another file has the name now */
	return -ENOENT;
}

/* What to call it: the name it is known to have, else the one it had. */
static void name_file(const struct recovery *rec, const struct state_who *who, int fd,
	char *text, size_t size)
{
	char link[40], path[4096];
	struct stat st;

	if (rec->src->raw) {
		snprintf(text, size, "%s", rec->src->path);
		return;
	}
	int named = open_by_name(rec, who, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	if (named >= 0) {
		close(named);
		snprintf(text, size, "%s/%s", rec->src->path, who->name);
		return;
	}
	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	ssize_t n = fd < 0 ? -1 : readlink(link, path, sizeof(path) - 1);
	path[n < 0 ? 0 : n] = '\0';
	/* A file opened by handle may show half a path. */
	if (stat(path, &st) == 0 && st.st_ino == who->ino)
		snprintf(text, size, "%s", path);
	else
		snprintf(text, size, "%s/%s (or what became of it, inode %" PRIu64 ")",
			rec->src->path, who->name, who->ino);
}

/* ---- the zeroes at the end ---- */

/* A write of the dead daemon may still be on its way to the disk; this waits for it, and does
 * nothing else: the byte is there. Where it is not supported nothing was lengthened. */
static void wait_for_direct_io(int fd, off_t size)
{
	if (size > 0 && fallocate(fd, FALLOC_FL_KEEP_SIZE, size - 1, 1) < 0)
		log_debug("waiting for writes under way: %s", strerror(errno));
}

/* Returns the size it was cut to, or -1: nothing to cut. Only where the file below is as the
 * daemon made it, and only what has never been written: a hole that reaches to nothing but holes
 * and pages that arrived out of order. */
static off_t trim(int fd, const struct state_record *r)
{
	struct stat st;

	if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_ino != r->who.ino)
		return -1;
	wait_for_direct_io(fd, st.st_size);
	uint64_t size = (uint64_t)st.st_size;
	if (!r->extended_to || size < r->extended_from || size > r->extended_to ||
		r->written >= size)
		return -1;
	/* Somebody who read the zeroes has left them in the page cache, where they look like
	 * data. */
	if (posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) != 0)
		return -1;
	off_t hole = lseek(fd, (off_t)r->written, SEEK_HOLE);
	if (hole < 0 || hole >= st.st_size)
		return -1;
	if (ftruncate(fd, hole) < 0) {
		log_warn("zeroes at the end of inode %" PRIu64 " could not be cut off: %s",
			r->who.ino, strerror(errno));
		return -1;
	}
	return hole;
}

/* ---- one file ---- */

static uint64_t lost_bytes(const struct state_record *r)
{
	uint64_t bytes = r->pages * PAGE_BYTES;

	return bytes < r->size ? bytes : r->size;
}

static void tell(struct recovery *rec, const struct state_record *r, int fd, off_t cut_to)
{
	uint64_t bytes = lost_bytes(r);
	char name[4096 + STATE_NAME_MAX], zeroes[80] = "";

	rec->loss->files++;
	rec->loss->bytes += bytes;
	if (rec->told++ >= TOLD_MOST)
		return;
	name_file(rec, &r->who, fd, name, sizeof(name));
	if (cut_to >= 0)
		snprintf(zeroes, sizeof(zeroes), "; it ends at %" PRIu64 " now",
			(uint64_t)cut_to);
	if (bytes)
		log_warn("%s: up to %" PRIu64 " bytes written last were lost%s%s", name, bytes,
			r->cut ? ", and that it was made shorter before" : "", zeroes);
	else
		log_warn("%s: that it was made shorter (%" PRIu64 " bytes) was lost%s", name,
			r->size, zeroes);
}

/* false: the file is gone, and with it whatever it should have held. */
static bool open_record(const struct recovery *rec, const struct state_record *r, int *ret_fd)
{
	int flags =
		(rec->src->read_only ? O_RDONLY : O_RDWR) | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
	struct stat st;

	*ret_fd = -1;
	if (r->gone)
		return false;
	if (rec->src->raw)
		return true;
	int fd = open_by_handle(rec, &r->who, flags);
	if (fd == -ESTALE)
		return false;
	if (fd < 0)
		fd = open_by_name(rec, &r->who, flags);
	if (fd >= 0 && fstat(fd, &st) == 0 && st.st_nlink == 0) {
		close(fd);
		return false;
	}
	*ret_fd = fd;
	return true; /* also when it cannot be opened: it is told */
}

static void recover_record(struct recovery *rec, const struct state_record *r)
{
	off_t cut_to = -1;
	int fd;

	if ((r->pages == 0 && !r->cut && !r->extended_to) || !open_record(rec, r, &fd))
		return;
	if (fd >= 0 && !rec->src->read_only)
		cut_to = trim(fd, r);
	rec->loss->trimmed += cut_to >= 0;
	if (r->pages || r->cut || cut_to >= 0)
		tell(rec, r, fd, cut_to);
	if (fd >= 0)
		close(fd);
}

/* ---- all of them ---- */

static bool same_source(const struct state_header *h, const struct state_source *src)
{
	struct statfs sf;
	struct stat st;
	uint64_t id = 0;

	if (fstatfs(src->root_fd, &sf) < 0 || fstat(src->root_fd, &st) < 0)
		return false;
	memcpy(&id, &sf.f_fsid, sizeof(id));
	return id == h->fsid && st.st_ino == h->root_ino;
}

static void recover_all(
	struct recovery *rec, const void *data, size_t bytes, struct state_record *records)
{
	struct state_header header;
	unsigned more, damaged;

	unsigned nr =
		state_parse(data, bytes, &header, records, STATE_RECORDS, &more, &damaged);
	if (nr + more && !same_source(&header, rec->src)) {
		log_info("%s: what the last pacefs left behind was about another filesystem",
			rec->src->path);
		return;
	}
	for (unsigned i = 0; i < nr; i++)
		recover_record(rec, &records[i]);
	if (rec->told > TOLD_MOST)
		log_warn("%s: and %u more files lost their last writes", rec->src->path,
			rec->told - TOLD_MOST);
	if (more)
		log_warn("%s: up to %u more files, whose names were not kept, lost their last "
			 "writes",
			rec->src->path, more);
	if (damaged)
		log_warn("%s: the list of what was lost is damaged: there may be more",
			rec->src->path);
	rec->loss->files += more;
	if (rec->loss->files)
		log_warn("%s: the last pacefs here was killed: %u files lost up to %" PRIu64
			 " bytes of what was not synced; what was synced is there",
			rec->src->path, rec->loss->files, rec->loss->bytes);
}

void state_recover(int fd, const struct state_source *src, struct state_loss *ret_loss)
{
	struct recovery rec = {.src = src, .loss = ret_loss};
	struct state_record *records = calloc(STATE_RECORDS, sizeof(*records));
	char *data = malloc(STATE_FILE_BYTES);
	ssize_t n = data && records ? pread(fd, data, STATE_FILE_BYTES, 0) : -1;

	memset(ret_loss, 0, sizeof(*ret_loss));
	if (n < 0)
		log_warn("%s: whether the last pacefs here ended well cannot be told: %s",
			src->path, strerror(data && records ? errno : ENOMEM));
	else
		recover_all(&rec, data, (size_t)n, records);
	free(data);
	free(records);
}
