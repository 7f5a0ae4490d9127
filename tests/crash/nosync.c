/* nosync.c - for LD_PRELOAD: a program that only says that it has synced. What judges crashes must
 * catch a daemon with it. */
#include <unistd.h>

int fsync(int fd)
{
	return 0;
}

int fdatasync(int fd)
{
	return 0;
}

int syncfs(int fd)
{
	return 0;
}
