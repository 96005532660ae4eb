// Runs the library's CUDA kernels on the host: every thread of a block is a fiber, and a barrier or a shuffle
// passes control to the next one. For checks of index arithmetic where there is no GPU; nothing is timed.
#include <sys/mman.h>
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static
#define __launch_bounds__(...)
using __half = _Float16;
static float __half2float(__half x) { return (float)x; }
static __half __float2half_rn(float x) { return (__half)x; }
struct dim3 {
  unsigned x, y;
  dim3(unsigned x = 1, unsigned y = 1) : x(x), y(y) {}
};
using cudaStream_t = void*;
using cudaError_t = int;
enum { cudaSuccess = 0 };
static int cudaGetLastError() { return 0; }
static const char* cudaGetErrorString(int) { return ""; }
static dim3 threadIdx, blockIdx, blockDim;

struct Fiber {
  ucontext_t context;
  std::vector<char> stack = std::vector<char>(32768);
  bool done = false;
};
static std::vector<Fiber> fibers(1024);
static ucontext_t scheduler;
static unsigned running;
static bool backwards;  // whoever writes last wins: a store too far shows in one of the two orders
static const std::function<void()>* body;
static uint64_t exchanged[1024];

static void pass_on() { swapcontext(&fibers[running].context, &scheduler); }
static void __syncthreads() { pass_on(); }
template <typename X>
X __shfl_xor_sync(unsigned, X x, int o) {
  memcpy(&exchanged[running], &x, sizeof(X));
  pass_on();
  memcpy(&x, &exchanged[running ^ o], sizeof(X));
  pass_on();
  return x;
}
static void enter() {
  (*body)();
  fibers[running].done = true;
}
static void pb_launch(dim3 grid, dim3 threads, const std::function<void()>& kernel) {
  body = &kernel;
  blockDim = threads;
  const unsigned count = threads.x * threads.y;
  for (unsigned block = 0; block < grid.x; ++block) {
    blockIdx.x = backwards ? grid.x - 1 - block : block;
    for (unsigned k = 0; k < count; ++k) {
      Fiber& f = fibers[k];
      getcontext(&f.context);
      f.context.uc_stack.ss_sp = f.stack.data();
      f.context.uc_stack.ss_size = f.stack.size();
      f.context.uc_link = &scheduler;
      f.done = false;
      makecontext(&f.context, enter, 0);
    }
    for (unsigned left = count; left > 0;) {
      left = 0;
      for (unsigned turn = 0; turn < count; ++turn) {
        running = backwards ? count - 1 - turn : turn;
        if (fibers[running].done) continue;
        threadIdx = dim3(running % threads.x, running / threads.x);
        swapcontext(&scheduler, &fibers[running].context);
        left += !fibers[running].done;
      }
    }
  }
}

// Memory whose first byte (or whose last) lies at the border of a page that faults.
static char* guarded(size_t bytes, bool at_end) {
  const size_t page = 4096, room = (bytes + page - 1) / page * page;
  char* all = (char*)mmap(nullptr, room + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  mprotect(all + page, room, PROT_READ | PROT_WRITE);
  return all + page + (at_end ? room - bytes : 0);
}
