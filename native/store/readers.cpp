#include "readers.h"

#include <algorithm>
#include <csignal>
#include <pthread.h>

namespace hotset {

Readers::Readers(uint32_t num_threads, ReadFunction function, void* context, Listener& listener)
    : function(function), context(context), listener(listener) {
    // Signals are the host's business: none may land on a thread that it does not know of.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    threads.reserve(num_threads);
    for (uint32_t i = 0; i < num_threads; ++i) {
        threads.emplace_back([this] { work(); });
        pthread_setname_np(threads.back().native_handle(), "hotset-reader");
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Readers::~Readers() {
    {
        const std::lock_guard lock(mutex);
        stopping = true;
        queue.clear();
    }
    wake.notify_all();
    for (std::thread& thread : threads) {
        thread.join();
    }
}

void Readers::submit(const std::vector<Job>& jobs) {
    {
        const std::lock_guard lock(mutex);
        queue.insert(queue.end(), jobs.begin(), jobs.end());
    }
    for (size_t i = 0; i < std::min(jobs.size(), threads.size()); ++i) {
        wake.notify_one();
    }
}

void Readers::work() {
    std::unique_lock lock(mutex);
    while (true) {
        wake.wait(lock, [this] { return stopping || !queue.empty(); });
        if (stopping) {
            return;
        }
        const Job job = queue.front();
        queue.pop_front();
        lock.unlock();
        uint64_t moved = 0;
        std::string error =
            job.file->read(job.memory, job.offset, job.size_bytes, function, context, moved);
        listener.done(job, std::move(error), moved);
        lock.lock();
    }
}

} // namespace hotset
