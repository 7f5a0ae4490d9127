/* The memory limit of the control groups a process is in, from trees as the kernel shows them. */
#include "fuse/memory.h"

#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

static char root[64];

/* root/path, with the directories it lies in */
static void put(const char *path, const char *text)
{
	char full[PATH_MAX];

	snprintf(full, sizeof(full), "%s/%s", root, path);
	for (char *slash = full + strlen(root) + 1; (slash = strchr(slash, '/')); slash++) {
		*slash = '\0';
		mkdir(full, 0755);
		*slash = '/';
	}
	FILE *file = fopen(full, "w");
	assert_non_null(file);
	fputs(text, file);
	fclose(file);
}

static int setup(void **state)
{
	strcpy(root, "/tmp/test_memory.XXXXXX");
	assert_non_null(mkdtemp(root));
	return 0;
}

static int teardown(void **state)
{
	char command[128];

	snprintf(command, sizeof(command), "rm -r %s", root);
	return system(command);
}

#define V1_MOUNT                                                                               \
	"31 23 0:28 / /cg rw,relatime - tmpfs tmpfs rw,mode=755\n"                             \
	"32 31 0:29 / /cg/cpu rw,relatime - cgroup cgroup rw,cpu\n"                            \
	"35 31 0:32 / /cg/memory rw,relatime shared:4 - cgroup cgroup rw,memory\n"             \
	"41 31 0:38 / /cg/unified rw,relatime - cgroup2 cgroup2 rw\n"

static void version_1_the_least_up_the_tree(void **state)
{
	put("proc/self/cgroup", "9:name=systemd:/x\n4:memory:/a/b/c\n0::/\n");
	put("proc/self/mountinfo", V1_MOUNT);
	put("cg/unified/cgroup.procs", "");
	put("cg/memory/memory.limit_in_bytes", "9223372036854771712\n");
	assert_int_equal(memory_group_limit(root), 9223372036854771712ull);
	put("cg/memory/a/b/c/memory.limit_in_bytes", "300000000\n");
	assert_int_equal(memory_group_limit(root), 300000000);
	put("cg/memory/a/memory.limit_in_bytes", "134217728\n");
	assert_int_equal(memory_group_limit(root), 134217728);
	put("cg/memory/a/b/memory.limit_in_bytes", "9223372036854771712\n");
	assert_int_equal(memory_group_limit(root), 134217728);
}

static void version_2_max_is_no_limit(void **state)
{
	put("proc/self/cgroup", "0::/system.slice/pacefs.service\n");
	put("proc/self/mountinfo", "31 23 0:28 / /cg rw - cgroup2 cgroup2 rw,nsdelegate\n");
	put("cg/system.slice/pacefs.service/memory.max", "max\n");
	assert_true(memory_group_limit(root) == MEMORY_NO_LIMIT);
	put("cg/system.slice/memory.max", "67108864\n");
	assert_int_equal(memory_group_limit(root), 67108864);
}

/* A container sees its own group as the top. */
static void a_tree_seen_from_further_down(void **state)
{
	put("proc/self/cgroup", "4:memory:/docker/0123/sub\n");
	put("proc/self/mountinfo",
		"35 31 0:32 /docker/0123 /cg/memory rw - cgroup cgroup rw,memory\n");
	put("cg/memory/memory.limit_in_bytes", "5000000\n");
	put("cg/memory/sub/memory.limit_in_bytes", "4000000\n");
	assert_int_equal(memory_group_limit(root), 4000000);
	put("proc/self/cgroup", "4:memory:/elsewhere\n");
	assert_int_equal(memory_group_limit(root), 5000000);
}

static void nothing_known_is_no_limit(void **state)
{
	assert_true(memory_group_limit(root) == MEMORY_NO_LIMIT);
	put("proc/self/cgroup", "garbage\n4\n5:memory\n");
	put("proc/self/mountinfo", "garbage - \n");
	assert_true(memory_group_limit(root) == MEMORY_NO_LIMIT);
	assert_true(memory_machine_bytes() > 0);
}

#define test(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		test(version_1_the_least_up_the_tree),
		test(version_2_max_is_no_limit),
		test(a_tree_seen_from_further_down),
		test(nothing_known_is_no_limit),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
