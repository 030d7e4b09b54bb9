// A pool of threads that read matrices.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "file.h"

namespace hotset {

struct Job {
    const File* file;
    uint64_t offset;
    uint64_t size_bytes;
    char* memory;
    void* owner; // of no meaning to the readers, as are the next two
    uint32_t unit;
    uint32_t part;
};

class Readers {
public:
    // Told by a reader's thread when a job is done; `error` is empty on success.
    class Listener {
    public:
        virtual void done(const Job&, std::string error, uint64_t moved_bytes) = 0;

    protected:
        ~Listener() = default;
    };

    Readers(uint32_t num_threads, ReadFunction function, void* context, Listener& listener);
    // Finishes the jobs that were begun, drops the others, and joins the threads.
    ~Readers();
    Readers(const Readers&) = delete;
    Readers& operator=(const Readers&) = delete;

    // In this order, as many at a time as there are threads.
    void submit(const std::vector<Job>& jobs);

private:
    void work();

    ReadFunction function;
    void* context;
    Listener& listener;
    std::mutex mutex;
    std::condition_variable wake;
    std::deque<Job> queue;
    bool stopping = false;
    std::vector<std::thread> threads;
};

} // namespace hotset
