// Work that is shared with the threads of XLA's pool.
#ifndef JAXINFER_CPU_TASKS_H_
#define JAXINFER_CPU_TASKS_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <type_traits>

#include "xla/ffi/api/ffi.h"

namespace jaxinfer {

// Calls body(0) to body(count - 1), each once, on this thread and those of the pool; returns when all have returned.
//
// This thread takes what no other has begun, so it never waits for a thread that is not at work: the pool may be busy,
// or this thread may be one of its own.
template <typename Body>
void share(xla::ffi::ThreadPool pool, int64_t count, const Body& body) {
  struct State {
    std::atomic<int64_t> next{0}, done{0};
  };
  const auto state = std::make_shared<State>();
  const auto work = [state, count, &body] {
    for (int64_t at; (at = state->next.fetch_add(1, std::memory_order_relaxed)) < count;) {
      body(at);
      state->done.fetch_add(1, std::memory_order_release);
    }
  };
  const int64_t threads = pool.num_threads();
  for (int64_t i = 1; i < threads && i < count; ++i) pool.Schedule(std::decay_t<decltype(work)>(work));
  work();
  for (int spins = 0; state->done.load(std::memory_order_acquire) < count; ++spins)
    if (spins > 4096) std::this_thread::yield();
}

}  // namespace jaxinfer

#endif  // JAXINFER_CPU_TASKS_H_
