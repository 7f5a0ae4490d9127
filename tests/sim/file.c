#include "tests/sim/model.h"

#include <stdlib.h>

/* Files lie in the first part of the disk, as on one that is not full yet. */
static const double span = 0.4;

static uint64_t min_u64(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static uint64_t dirty_end(const struct sim_file *f)
{
	return f->dirty_from + f->node.nr_dirty;
}

/* Of the dirty pages those below index. */
static uint64_t dirty_below(const struct sim_file *f, uint64_t index)
{
	return index <= f->dirty_from ? 0 : min_u64(index - f->dirty_from, f->node.nr_dirty);
}

static void set_position(struct sim_file *f)
{
	uint64_t index = f->loop_pages ? f->dirty_from % f->loop_pages : f->dirty_from;

	f->node.position = f->place + index * SIM_PAGE;
}

struct sim_file *sim_file_create(struct sim *sim, struct sim_device *d, uint64_t loop_pages)
{
	struct sim_file *f = sim->free_files;

	if (f) {
		sim->free_files = f->next;
		*f = (struct sim_file){.all = f->all};
	} else {
		f = calloc(1, sizeof(*f));
		if (!f) {
			sim_no_memory(sim);
			return NULL;
		}
		f->all = sim->all_files;
		sim->all_files = f;
	}
	node_init(&f->node, &d->dev, ++sim->next_file, 0);
	node_get(&f->node);
	f->device = d;
	f->loop_pages = loop_pages;
	double at = sim_random_uniform(&sim->random) * span * d->spec->disk_bytes;
	f->place = (uint64_t)(at / SIM_PAGE + 1) * SIM_PAGE;
	set_position(f);
	return f;
}

void sim_file_release(struct sim *sim, struct sim_file *f)
{
	f->waiting = NULL;
	node_put(&f->node);
	sim_files_reap(sim);
}

void sim_files_reap(struct sim *sim)
{
	struct node *node;

	while ((node = node_reap(&sim->dom))) {
		struct sim_file *f = (struct sim_file *)node;
		f->next = sim->free_files;
		sim->free_files = f;
	}
}

uint64_t sim_file_count_new(const struct sim_file *f, uint64_t nr_pages)
{
	return f->loop_pages ? min_u64(nr_pages, f->loop_pages - f->node.nr_dirty) : nr_pages;
}

void sim_file_dirty(struct sim_file *f, uint64_t nr_pages, uint64_t now_us)
{
	struct node *node = &f->node;

	if (!nr_pages)
		return;
	node->dom->nr_dirty += nr_pages;
	node->dev->nr_dirty += nr_pages;
	node->dev->dirtied += nr_pages;
	f->device->taken += nr_pages;
	if (node->nr_dirty == 0 && node->place == NODE_CLEAN) {
		node->dirtied_when_us = now_us;
		set_position(f);
		node_move(node, NODE_ON_DIRTY);
	}
	node->nr_dirty += nr_pages;
	if (!node->on_unclean)
		node_update_unclean(node);
}

/* Pages left dirty; in both cases a tag goes or stays with them. */
static void undirty(struct sim_file *f, uint64_t nr_pages)
{
	struct node *node = &f->node;

	node->dom->nr_dirty -= nr_pages;
	node->dev->nr_dirty -= nr_pages;
	node->nr_dirty -= nr_pages;
	if (node->nr_dirty == 0 && node->place != NODE_CLEAN)
		node_move(node, NODE_CLEAN);
}

uint64_t sim_file_run(const struct sim_file *f, uint64_t most, bool tagged_only)
{
	uint64_t run = min_u64(f->node.nr_dirty, most);

	if (tagged_only)
		run = min_u64(run, dirty_below(f, f->tagged_to));
	if (f->loop_pages) {
		/* Up to its end, and not what an older write in flight is about. */
		run = min_u64(run, f->loop_pages - f->dirty_from % f->loop_pages);
		run = min_u64(run, f->written_to + f->loop_pages - f->dirty_from);
	}
	return run;
}

void sim_file_begin(struct sim_file *f, struct sim_io *io, uint64_t nr_pages)
{
	struct node *node = &f->node;

	*io = (struct sim_io){
		.file = f,
		.index = f->dirty_from,
		.nr_pages = nr_pages,
		.nr_tagged = min_u64(nr_pages, dirty_below(f, f->tagged_to)),
		.nr_sync = min_u64(nr_pages, dirty_below(f, f->sync_to)),
	};
	node_get(node);
	undirty(f, nr_pages);
	f->dirty_from += nr_pages;
	set_position(f);
	node->nr_writeback += nr_pages;
	node->dom->nr_writeback += nr_pages;
	node->dev->nr_writeback += nr_pages;
	node->inflight_bytes += nr_pages * SIM_PAGE;
	flush_pick_took(&f->device->pick, node, io->index, nr_pages);
}

static void untag(struct sim_file *f, uint64_t nr_tagged, uint64_t nr_sync)
{
	f->node.nr_tagged -= nr_tagged;
	f->node.dev->nr_tagged -= nr_tagged;
	f->device->sync_left -= nr_sync;
}

void sim_file_end(struct sim_io *io)
{
	struct sim_file *f = io->file;
	struct node *node = &f->node;

	node->nr_writeback -= io->nr_pages;
	node->dom->nr_writeback -= io->nr_pages;
	node->dev->nr_writeback -= io->nr_pages;
	node->dev->written += io->nr_pages;
	node->inflight_bytes -= io->nr_pages * SIM_PAGE;
	node->ended_seq += io->nr_pages;
	f->written_to = io->index + io->nr_pages;
	untag(f, io->nr_tagged, io->nr_sync);
	node_update_unclean(node);
	if (f->waiting && node->nr_tagged == 0)
		sim_writer_synced(f->waiting);
	node_put(node);
}

uint64_t sim_file_drop(struct sim_file *f, uint64_t most)
{
	uint64_t n = min_u64(f->node.nr_dirty, most);
	uint64_t tagged = dirty_below(f, f->tagged_to), sync = dirty_below(f, f->sync_to);

	if (!n)
		return 0;
	f->node.dev->dirtied -= n; /* as if it had never been there */
	f->device->dropped += n;
	undirty(f, n);
	f->tagged_to = min_u64(f->tagged_to, dirty_end(f));
	f->sync_to = min_u64(f->sync_to, dirty_end(f));
	untag(f, tagged - dirty_below(f, f->tagged_to), sync - dirty_below(f, f->sync_to));
	if (f->waiting && f->node.nr_tagged == 0)
		sim_writer_synced(f->waiting);
	node_update_unclean(&f->node);
	return n;
}

static void tag_in_flight(struct sim_file *f, struct sim_io *list, bool sync)
{
	for (struct sim_io *io = list; io; io = io->next) {
		if (io->file != f)
			continue;
		f->node.nr_tagged += io->nr_pages - io->nr_tagged;
		f->node.dev->nr_tagged += io->nr_pages - io->nr_tagged;
		io->nr_tagged = io->nr_pages;
		if (!sync)
			continue;
		f->device->sync_left += io->nr_pages - io->nr_sync;
		io->nr_sync = io->nr_pages;
	}
}

void sim_file_tag(struct sim_file *f, bool sync)
{
	struct node *node = &f->node;
	uint64_t more = node->nr_dirty - dirty_below(f, f->tagged_to);

	node->nr_tagged += more;
	node->dev->nr_tagged += more;
	f->tagged_to = dirty_end(f);
	if (sync) {
		f->device->sync_left += node->nr_dirty - dirty_below(f, f->sync_to);
		f->sync_to = dirty_end(f);
	}
	tag_in_flight(f, f->device->queue, sync);
	tag_in_flight(f, f->device->served, sync);
}
