// The expert store: expert weights in files, the hot ones in memory.
//
// Knows nothing of ggml. A *part* is one weight tensor of a layer, holding one matrix per expert
// (gate, up, down). A *unit* is one expert of one layer: its matrix of every part. Memory is given
// and taken by the unit; parts of a unit are read one by one, so that the first can be used while
// the others arrive.
//
//     store = hotset_store_new();
//     layer = hotset_store_add_layer(store, parts, num_parts, num_experts);   (for every layer)
//     hotset_store_open(store, &config);
//     lease = hotset_store_acquire(store, layer, experts, n, HOTSET_ALL_PARTS, num_tokens);
//     weights = hotset_store_wait(lease, i, part);   (i: index in `experts`)
//     hotset_store_release(lease);
//     hotset_store_free(store);
//
// All functions but new, add_layer, share, open and free may be called from several threads. A
// thread that holds a lease must not wait for another: release first, then acquire, or only try to.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HOTSET_MAX_PARTS 4
#define HOTSET_ALL_PARTS ((1u << HOTSET_MAX_PARTS) - 1)

// Batches of more tokens are prompts: they touch much once, and say little of what decoding needs,
// so they do not push out what it uses.
#define HOTSET_MOST_DECODED_TOKENS 16

typedef struct hotset_store hotset_store;
typedef struct hotset_lease hotset_lease;

typedef struct {
    const char* path;      // file that holds the tensor; copied
    uint64_t offset;       // of expert 0, bytes
    uint64_t expert_bytes; // from one expert to the next, without gaps
} hotset_part;

typedef struct {
    uint64_t ram_bytes;   // for expert weights in memory, all layers together
    uint32_t num_readers; // threads that read, at least 1
    // Reads like pread; for tests. Null: pread.
    ssize_t (*read)(void* context, int file, void* memory, size_t size, off_t offset);
    void* read_context;
} hotset_config;

// What the store counts, in all or of one layer. The layers add up to the whole.
typedef struct {
    uint64_t resident_bytes; // memory in use, whole units
    uint64_t num_requests;   // units asked for
    uint64_t num_hits;       // of them wholly in memory or already on their way
    uint64_t num_evictions;
    uint64_t read_bytes;
    uint64_t num_reads;
    uint64_t wait_ns; // time spent in hotset_store_wait
} hotset_stats;

hotset_store* hotset_store_new(void);

// The number of the new layer, or -1 (see hotset_store_error). Not after open.
int hotset_store_add_layer(hotset_store*, const hotset_part* parts, uint32_t num_parts,
                           uint32_t num_experts);

// Opens the files, reserves the memory and starts the readers. 0, or -1 (see error).
int hotset_store_open(hotset_store*, const hotset_config*);

// Units of this layer that fit into memory at once, and so into one lease.
uint32_t hotset_store_capacity(const hotset_store*, int layer);

// Takes the units of `experts` (distinct, at most the capacity) into memory and starts to read
// those of their parts that are missing and named in `parts` (bit p: part p). Asked for by a batch
// of `num_tokens`. Returns at once unless other leases hold the memory. Null on error.
hotset_lease* hotset_store_acquire(hotset_store*, int layer, const int32_t* experts, size_t n,
                                   uint32_t parts, uint32_t num_tokens);

// The same, but null where it would have to wait, or others do.
hotset_lease* hotset_store_try_acquire(hotset_store*, int layer, const int32_t* experts, size_t n,
                                       uint32_t parts, uint32_t num_tokens);

// Is this matrix there, or has its read failed? Does not wait.
int hotset_store_ready(hotset_lease*, size_t i, uint32_t part);

// The matrix, valid until the lease is released; null when it could not be read.
const void* hotset_store_wait(hotset_lease*, size_t i, uint32_t part);

void hotset_store_release(hotset_lease*);

// Memory reserved for units. Constant after open.
uint64_t hotset_store_budget(const hotset_store*);

// Copies of one instant.
void hotset_store_stats(hotset_store*, hotset_stats*);
void hotset_store_layer_stats(hotset_store*, int layer, hotset_stats*);

// Counts there from now on, and not in memory of the store's own; must outlive the store. Not after
// open. Each number is always whole, and anybody may read it at any time, another process too;
// numbers that are read one after the other are not of one instant.
void hotset_store_share_stats(hotset_store*, hotset_stats*);
void hotset_store_share_layer_stats(hotset_store*, int layer, hotset_stats*);

// The matrices of one part of one layer in memory, as an array that has one place for each unit of
// `capacity`: those not in memory are no weights. False (0) if they do not lie evenly: then only
// the pointers of hotset_store_wait tell where they are. Constant after open.
typedef struct {
    const void* base;
    uint64_t stride_bytes;
    uint32_t num_places;
} hotset_bank;

int hotset_store_bank(const hotset_store*, int layer, uint32_t part, hotset_bank*);

// What went wrong last, one line; empty if nothing did. Valid until the next call.
const char* hotset_store_error(hotset_store*);

// No lease may be out. Stops the readers and returns all memory.
void hotset_store_free(hotset_store*);

#ifdef __cplusplus
}
#endif
