#include "fuse/crash.h"

#include "fuse/lock.h"
#include "fuse/node.h"
#include "util/log.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool describe(const struct node *node, struct state_who *ret_who)
{
	const struct fnode *fn = (const struct fnode *)node;
	const char *name = node->file ? node->file->name : NULL;

	ret_who->ino = fn->ino;
	ret_who->handle_type = fn->handle_type;
	ret_who->handle_bytes = fn->handle_bytes;
	memcpy(ret_who->handle, fn->handle, fn->handle_bytes);
	if (name) {
		size_t length = strlen(name);
		size_t skip = length < STATE_NAME_MAX ? 0 : length - STATE_NAME_MAX + 1;
		memcpy(ret_who->name, name + skip, length - skip);
	}
	return fn->unlinked;
}

static struct state_source source_of(const struct pacefs *p)
{
	const struct store *st = &p->backing.store;

	return (struct state_source){
		.path = p->options.source,
		.root_fd = st->raw ? st->root_fd : st->sync_fd,
		.raw = st->raw,
		.read_only = st->read_only,
	};
}

void crash_start(struct pacefs *p, const struct stat *source)
{
	struct state_source src = source_of(p);

	_Static_assert(STATE_HANDLE_MAX >= HANDLE_MAX, "a handle fits");
	/* What is said now is for the journal too. */
	if (!p->options.foreground)
		log_to_syslog();
	int fd = lock_state_open(source, !src.read_only, p->state_path, sizeof(p->state_path));
	int ret = fd < 0 ? fd : 0;
	if (ret == 0)
		state_recover(fd, &src, &p->loss);
	/* Nothing becomes unclean: the list stays for the next one that may write. */
	if (ret == 0 && src.read_only) {
		close(fd);
		p->state_path[0] = '\0';
		return;
	}
	if (ret == 0)
		ret = state_start(&p->state, fd, &src, describe);
	if (ret < 0) {
		/* No file to read, or a user without a place for one. */
		log_msg(ret == -ENOENT ? LOG_LEVEL_DEBUG : LOG_LEVEL_WARN,
			"%s: what a kill -9 would lose cannot be kept: %s", p->options.source,
			strerror(-ret));
		if (fd >= 0) {
			close(fd);
			unlink(p->state_path);
		}
		p->state_path[0] = '\0';
		return;
	}
	p->dom.state = &p->state;
}

void crash_finish(struct pacefs *p)
{
	domain_lock(&p->dom);
	p->dom.state = NULL;
	for (struct node *n = p->backing.dev.unclean; n; n = n->unclean_next)
		n->record = NULL;
	state_finish(&p->state);
	domain_unlock(&p->dom);
	if (p->state_path[0] && unlink(p->state_path) < 0)
		log_debug("%s: %s", p->state_path, strerror(errno));
	p->state_path[0] = '\0';
}

char *crash_name(struct pacefs *p, struct fnode *fn)
{
	int fd = fnode_fd_get(p, fn);
	char *name = fd < 0 ? NULL : store_file_find_name(&p->backing.store, fd);

	if (fd >= 0)
		fnode_fd_put(p, fn);
	return name;
}

/* With the lock. name is taken over. */
static void set_name(struct pacefs *p, struct node *node, char *name)
{
	free(node->file->name);
	node->file->name = name;
	state_renamed(p->dom.state, node);
}

/* Everything known below a directory. Walking all nodes is nothing beside renaming directories. */
static void rename_below(struct pacefs *p, const char *old, const char *now)
{
	size_t length = strlen(old);
	struct fnode *fn, *next;

	HASH_ITER (hh, p->nodes, fn, next) {
		const char *name = fn->node.file ? fn->node.file->name : NULL;
		char *changed;
		if (!name || strncmp(name, old, length) != 0 || name[length] != '/')
			continue;
		if (asprintf(&changed, "%s%s", now, name + length) >= 0)
			set_name(p, &fn->node, changed);
	}
}

void crash_renamed(struct pacefs *p, struct fnode *fn, char *old)
{
	char *now = crash_name(p, fn);

	domain_lock(&p->dom);
	if (S_ISDIR(fn->type) && old && now) {
		rename_below(p, old, now);
	} else if (fn->node.file && now) {
		set_name(p, &fn->node, now);
		now = NULL;
	}
	domain_unlock(&p->dom);
	free(now);
	free(old);
}
