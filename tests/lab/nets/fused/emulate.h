// A GPU's block of threads on a CPU: every thread is a fiber, and warps meet for the instructions that they share.
// Enough of CUDA for stage.cu; slow, exact where the hardware is, and without a GPU.
#define EMULATED
#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

typedef uint32_t u32;
typedef unsigned long long u64;
struct uint2 { u32 x, y; };
struct uint4 { u32 x, y, z, w; };
struct dim { int x, y; };
static inline uint2 make_uint2(u32 x, u32 y) { return {x, y}; }
static inline uint4 make_uint4(u32 x, u32 y, u32 z, u32 w) { return {x, y, z, w}; }
static dim threadIdx, blockIdx, gridDim;
using std::max;
using std::min;
#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define LANE (threadIdx.x % 32)

static inline float __uint_as_float(u32 x) { float f; memcpy(&f, &x, 4); return f; }
static inline u32 bits(float f) { u32 x; memcpy(&x, &f, 4); return x; }

struct Meeting { int size = 0, arrived = 0, turn = 0; };
struct Fiber { ucontext_t context; std::vector<char> stack; jmp_buf place; bool begun = false, done = false; };
static std::vector<Fiber> fibers;
static jmp_buf scheduler;  // jumps, not swapcontext: that asks the kernel for the signal mask each time
static int current;
static Meeting whole;
static std::vector<Meeting> warps;
static std::vector<u32> board;            // what a warp's lanes lay open for each other: 16 words a lane
static std::vector<const void *> pointers;  // and an address
static std::vector<uint4> shared_bytes;
#define BEHIND 64
static std::function<void()> body;
#define SHARED uint4 *shared_memory = shared_bytes.data()

static void pause() { if (!_setjmp(fibers[current].place)) _longjmp(scheduler, 1); }
static void resume(Fiber &fiber) {
    if (_setjmp(scheduler)) return;
    if (fiber.begun) _longjmp(fiber.place, 1);
    fiber.begun = true;
    setcontext(&fiber.context);
}
static void meet(Meeting &m) {
    int turn = m.turn;
    if (++m.arrived == m.size) { m.arrived = 0; m.turn++; return; }
    while (m.turn == turn) pause();
}
static void __syncthreads() { meet(whole); }
static void __threadfence() {}
static u32 atomicAdd(u32 *to, u32 more) { u32 before = *to; *to += more; return before; }
static float __ldcg(const float *from) { return *from; }
static Meeting &warp() { return warps[threadIdx.x / 32]; }
static u32 *mine(int lane) { return &board[(threadIdx.x / 32 * 32 + lane) * 16]; }

static float exchanged(float x, int mask) {
    mine(LANE)[0] = bits(x);
    meet(warp());
    float other = __uint_as_float(mine(LANE ^ mask)[0]);
    meet(warp());
    return other;
}

static void matrices(u32 (&r)[4], const void *p, bool transposed) {
    pointers[threadIdx.x] = p;
    meet(warp());
    int lane = LANE, start = threadIdx.x / 32 * 32;
    for (int i = 0; i < 4; i++) {
        uint16_t value[2];
        for (int e = 0; e < 2; e++) {
            int row = transposed ? lane % 4 * 2 + e : lane / 4, column = transposed ? lane / 4 : lane % 4 * 2 + e;
            const char *from = (const char *)pointers[start + 8 * i + row];
            if ((uintptr_t)from % 16) abort();
            memcpy(&value[e], from + 2 * column, 2);
        }
        r[i] = value[0] | (u32)value[1] << 16;
    }
    meet(warp());
}
static void load_matrices(u32 (&r)[4], const void *p) { matrices(r, p, false); }
static void load_transposed(u32 (&r)[4], const void *p) { matrices(r, p, true); }

static float half_of(u32 word, int e) { return __uint_as_float(e ? word & 0xffff0000u : word << 16); }
static void multiply(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    u32 *own = mine(LANE);
    for (int i = 0; i < 4; i++) own[i] = a[i];
    own[4] = b0, own[5] = b1;
    meet(warp());
    for (int i = 0; i < 4; i++) {
        int row = LANE / 4 + i / 2 * 8, column = LANE % 4 * 2 + i % 2;
        float sum = d[i];
        for (int k = 0; k < 16; k++) {
            u32 left = mine(row % 8 * 4 + k % 8 / 2)[row / 8 + k / 8 * 2];
            u32 right = mine(column * 4 + k % 8 / 2)[4 + k / 8];
            sum += half_of(left, k % 2) * half_of(right, k % 2);
        }
        own[8 + i] = bits(sum);
    }
    for (int i = 0; i < 4; i++) d[i] = __uint_as_float(own[8 + i]);
    meet(warp());
}

// Copies arrive at once or, with LATE, when the thread that asked for them waits for their group: both are allowed, and
// all between.
struct Copy { void *to; const void *from; };
static std::vector<std::vector<std::vector<Copy>>> underway;  // of a thread: groups, the last one open
static void end_group() { underway[threadIdx.x].push_back({}); }
template <int OPEN> static void wait_for_all_but() {
    auto &groups = underway[threadIdx.x];
    for (; groups.size() > OPEN + 1; groups.erase(groups.begin()))
        for (Copy &copy : groups[0]) memcpy(copy.to, copy.from, 16);
}
static void wait_for_copies() {
    end_group();
    wait_for_all_but<0>();
}
static void copy_ahead(void *to, const void *from) {
    if ((uintptr_t)to % 16 || (uintptr_t)from % 16) abort();
#ifdef LATE
    underway[threadIdx.x].back().push_back({to, from});
#else
    memcpy(to, from, 16);
#endif
}

static u32 rounded(float f) {
    u32 x = bits(f);
    if (f != f) return 0x7fff;
    return (x + 0x7fff + (x >> 16 & 1)) >> 16;
}
static u32 packed(float low, float high) { return rounded(low) | rounded(high) << 16; }
static u32 packed_relu(float low, float high) { return packed(low < 0.f ? 0.f : low, high < 0.f ? 0.f : high); }

static void enter() { body(); fibers[current].done = true; _longjmp(scheduler, 1); }

static void launch(int across, int down, int threads, int bytes, std::function<void()> work) {
    body = work;
    gridDim = {across, down};
    for (int by = 0; by < down; by++)
        for (int bx = 0; bx < across; bx++) {
            blockIdx = {bx, by};
            fibers = std::vector<Fiber>(threads);
            whole = {threads, 0, 0};
            warps.assign(threads / 32, {32, 0, 0});
            board.assign(threads * 16, 0);
            pointers.assign(threads, nullptr);
            underway.assign(threads, {{}});
            shared_bytes.assign(bytes / 16 + BEHIND, {0x7fc07fc0, 0x7fc07fc0, 0x7fc07fc0, 0x7fc07fc0});  // NaN until written
            for (Fiber &fiber : fibers) {
                fiber.stack.resize(1 << 15);
                getcontext(&fiber.context);
                fiber.context.uc_stack.ss_sp = fiber.stack.data();
                fiber.context.uc_stack.ss_size = fiber.stack.size();
                fiber.context.uc_link = nullptr;
                makecontext(&fiber.context, (void (*)())enter, 0);
            }
            for (bool busy = true; busy;) {
                busy = false;
                for (int next = 0; next < threads; next++) {
#ifdef LATE
                    current = threads - 1 - next;  // and the last thread goes first
#else
                    current = next;
#endif
                    if (fibers[current].done) continue;
                    busy = true;
                    threadIdx = {current, 0};
                    resume(fibers[current]);
                }
            }
            for (int i = bytes / 16 + (bytes % 16 > 0); i < bytes / 16 + BEHIND; i++)
                if (shared_bytes[i].x != 0x7fc07fc0) abort();  // written past what the kernel was given
        }
}
