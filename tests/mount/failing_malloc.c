/* LD_PRELOAD: memory that runs out on command.
 *
 * FAILING_MALLOC names a file of a page. While its first byte is '1', every allocation of the
 * process called pacefs fails; the uint64_t at 8 counts those refused. Others are left alone.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t n, size_t bytes);
extern void *__libc_realloc(void *old, size_t bytes);
extern void *__libc_memalign(size_t align, size_t bytes);

static struct {
	volatile char on;
	uint64_t refused;
} * page;

static void *map(void *at, size_t bytes, int prot, int flags, int fd, off_t offset)
{
	return (void *)syscall(SYS_mmap, at, bytes, prot, flags, fd, offset);
}

__attribute__((constructor)) static void start(void)
{
	const char *path = getenv("FAILING_MALLOC");
	int fd = path && strcmp(program_invocation_short_name, "pacefs") == 0
		? open(path, O_RDWR | O_CLOEXEC)
		: -1;

	if (fd < 0)
		return;
	void *mapped = map(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (mapped != MAP_FAILED)
		page = mapped;
}

static int refused(void)
{
	if (!page || page->on != '1')
		return 0;
	__atomic_fetch_add(&page->refused, 1, __ATOMIC_RELAXED);
	errno = ENOMEM;
	return 1;
}

void *malloc(size_t bytes)
{
	return refused() ? NULL : __libc_malloc(bytes);
}

void *calloc(size_t n, size_t bytes)
{
	return refused() ? NULL : __libc_calloc(n, bytes);
}

void *realloc(void *old, size_t bytes)
{
	return refused() ? NULL : __libc_realloc(old, bytes);
}

void *aligned_alloc(size_t align, size_t bytes)
{
	return refused() ? NULL : __libc_memalign(align, bytes);
}

int posix_memalign(void **ret_memory, size_t align, size_t bytes)
{
	void *memory = refused() ? NULL : __libc_memalign(align, bytes);

	if (!memory)
		return ENOMEM;
	*ret_memory = memory;
	return 0;
}

void *mmap(void *at, size_t bytes, int prot, int flags, int fd, off_t offset)
{
	return refused() ? MAP_FAILED : map(at, bytes, prot, flags, fd, offset);
}
