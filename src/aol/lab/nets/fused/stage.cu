// 3×3 convolutions of R stacked networks, stride 1, as many channels out as in, and both their gradients in one kernel.
//
// A block takes whole images of one run, I at a time, into shared memory, each value once: with its norm and activation,
// or as a gradient behind a norm, already applied. All nine taps then read from there. Maps are bf16 [R, B, S, S, C];
// shared memory holds planes of eight channels, 16 bytes a pixel, with a border of zeros, so that eight pixels of a row
// lie in one 128-byte line whatever the tap. Sums are fp32, added in one order: the same inputs give the same bits.
//
// Compiled for each (C, S, I, WARPS) by NVRTC, and for a CPU by g++ with tests/lab/nets/fused/emulate.h in front.

#ifndef EMULATED
typedef unsigned int u32;
typedef unsigned long long u64;
#define LANE (threadIdx.x & 31)

__device__ __forceinline__ u32 shared_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void load_matrices(u32 (&r)[4], const void *p) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(p)));
}

__device__ __forceinline__ void load_transposed(u32 (&r)[4], const void *p) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(p)));
}

__device__ __forceinline__ void multiply(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ u32 packed(float low, float high) {
    u32 r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

// As `packed`, behind a relu.
__device__ __forceinline__ u32 packed_relu(float low, float high) {
    u32 r;
    asm("cvt.rn.relu.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

__device__ __forceinline__ void copy_ahead(void *to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
}

__device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.commit_group;\ncp.async.wait_group 0;" ::: "memory");
}

// Copies asked for since the last call are a group; all but the last OPEN groups have arrived.
__device__ __forceinline__ void end_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int OPEN> __device__ __forceinline__ void wait_for_all_but() {
    asm volatile("cp.async.wait_group %0;" ::"n"(OPEN) : "memory");
}

__device__ __forceinline__ float exchanged(float x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
#define SHARED extern __shared__ uint4 shared_memory[]
#endif

#define THREADS (32 * WARPS)
#define PLANES (C / 8)
#define DEPTH (C / 16)
#define PITCH (S + 2)
#define AREA (PITCH * PITCH)
#define PIXELS (S * S)
// Planes lie apart so that threads that write one pixel of each meet no bank twice. In blocks.cu, which writes images
// once and outputs many times, the same holds for lanes that write four pixels of two planes.
#ifdef BLOCKS
#define APART 4
#else
#define APART (8 / PLANES)
#endif
#define PLANE ((I * AREA + 7) / 8 * 8 + APART)
#define TILE (PLANES * PLANE)
#define WEIGHTS (9 * DEPTH * DEPTH * 32)  // 16-byte pieces of packed weights, a lane's share of a 16×16 product each
#define UNITS (I * PIXELS * PLANES)       // 16-byte pieces of I images
#define TURNS (UNITS / THREADS)           // pieces a thread; a turn of all threads takes whole rows
#define ROWS_OF_TILES (I * PIXELS / 16)
static_assert(UNITS % THREADS == 0 && (THREADS / PLANES) % S == 0, "a turn takes whole rows");

__device__ __forceinline__ float low(u32 x) { return __uint_as_float(x << 16); }
__device__ __forceinline__ float high(u32 x) { return __uint_as_float(x & 0xffff0000u); }
__device__ __forceinline__ float relu(float x) { return x < 0.f ? 0.f : x; }  // NaN stays: a run that diverged shows it

// Place of a pixel, counted through the images of a group, in a plane.
__device__ __forceinline__ int place(int pixel) {
    int image = pixel / PIXELS, inside = pixel % PIXELS;
    return image * AREA + (inside / S + 1) * PITCH + inside % S + 1;
}

// Pixels come sixteen at a time, the rows of a product. They are counted down the rows of a strip sixteen pixels wide,
// so that a warp which takes several in a row needs each of its inputs once for three rows of taps.
#define STRIPS (S / 16)
__device__ __forceinline__ int pixel_of(int sixteen, int within) {
#if S >= 16
    int strip = sixteen / S;
    return strip / STRIPS * PIXELS + sixteen % S * S + strip % STRIPS * 16 + within;
#else
    return sixteen * 16 + within;
#endif
}

__device__ __forceinline__ void clear(uint4 *tile) {
    for (int i = threadIdx.x; i < TILE; i += THREADS) tile[i] = make_uint4(0, 0, 0, 0);
}

__device__ __forceinline__ void take_weights(uint4 *to, const uint4 *from, int run) {
    for (int i = threadIdx.x; i < WEIGHTS; i += THREADS) to[i] = from[(u64)run * WEIGHTS + i];
}

// Rows of a table [rows, R, C] of this run → shared memory [rows, C].
__device__ __forceinline__ void take_table(float *to, const float *from, int rows, int runs, int run) {
    for (int i = threadIdx.x; i < rows * C; i += THREADS) to[i] = from[((u64)(i / C) * runs + run) * C + i % C];
}

// Coefficients of the eight channels that a thread reads of every pixel.
struct Eight {
    float v[8];
};

__device__ __forceinline__ Eight eight(const float *table, int row, int thread) {
    Eight found;
    int first = (thread % PLANES) * 8;
#pragma unroll
    for (int i = 0; i < 8; i++) found.v[i] = table[row * C + first + i];
    return found;
}
__device__ __forceinline__ Eight coefficients(const float *table, int row) { return eight(table, row, threadIdx.x); }

__device__ __forceinline__ uint4 normed(uint4 x, const Eight &scale, const Eight &shift) {
    u32 word[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float a = low(word[i]) * scale.v[2 * i] + shift.v[2 * i];
        float b = high(word[i]) * scale.v[2 * i + 1] + shift.v[2 * i + 1];
        word[i] = packed_relu(a, b);
    }
    return make_uint4(word[0], word[1], word[2], word[3]);
}

__device__ __forceinline__ uint4 before_norm(uint4 g, uint4 y, const Eight &v0, const Eight &v1, const Eight &v2) {
    u32 gs[4] = {g.x, g.y, g.z, g.w}, ys[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float a = low(gs[i]) * v0.v[2 * i] + (low(ys[i]) * v1.v[2 * i] + v2.v[2 * i]);
        float b = high(gs[i]) * v0.v[2 * i + 1] + (high(ys[i]) * v1.v[2 * i + 1] + v2.v[2 * i + 1]);
        gs[i] = packed(a, b);
    }
    return make_uint4(gs[0], gs[1], gs[2], gs[3]);
}

// Where the piece of a thread's turn goes in a tile, and whether its image exists.
__device__ __forceinline__ int first_spot() { return (threadIdx.x % PLANES) * PLANE + place(threadIdx.x / PLANES); }
__device__ __forceinline__ int further(int turn) { return place(turn * (THREADS / PLANES)) - place(0); }
__device__ __forceinline__ bool there(int turn, int images) {
    return (turn * THREADS + threadIdx.x) / PLANES < images * PIXELS;
}

// Begin to read a thread's pieces of some images; the same thread takes them from there.
__device__ __forceinline__ void read_ahead(uint4 *staged, const uint4 *from, int images) {
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++)
        if (there(turn, images)) {
            int unit = turn * THREADS + threadIdx.x;
            copy_ahead(staged + unit, from + unit);
        }
}

// The product of a tile with packed weights for MT × 16 pixels and NT × 16 channels, added over nine taps.
// A lane's four sums of a 16 × 16 product: rows lane / 4 and lane / 4 + 8, channels 4 · (lane % 4) .. + 3.
// DOWN: the pixels are of MT rows, one below the other, and weights of all taps are held, for one row of inputs at a time.
template <int MT, int NT, bool DOWN>
__device__ __forceinline__ void convolve(
    float (&sums)[MT][NT][2][4], const uint4 *tile, const uint4 *weights, int first, int first_column) {
    int lane = LANE;
    int row = lane % 8 + 8 * (lane / 8 % 2);
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) sums[m][n][0][i] = sums[m][n][1][i] = 0.f;
    if (DOWN) {
        const uint4 *at = tile + (lane / 16) * PLANE + place(pixel_of(first, row));
#pragma unroll
        for (int k = 0; k < DEPTH; k++) {
            uint4 b[9][NT];
#pragma unroll
            for (int tap = 0; tap < 9; tap++)
#pragma unroll
                for (int n = 0; n < NT; n++) b[tap][n] = weights[((tap * DEPTH + k) * DEPTH + first_column + n) * 32 + lane];
#pragma unroll
            for (int i = -1; i <= MT; i++)
#pragma unroll
                for (int dx = -1; dx <= 1; dx++) {
                    u32 a[4];
                    load_matrices(a, at + i * PITCH + dx + 2 * k * PLANE);
#pragma unroll
                    for (int dy = -1; dy <= 1; dy++) {
                        if (i - dy < 0 || i - dy >= MT) continue;
#pragma unroll
                        for (int n = 0; n < NT; n++) {
                            const uint4 &w = b[3 * dy + dx + 4][n];
                            multiply(sums[i - dy][n][0], a, w.x, w.y);
                            multiply(sums[i - dy][n][1], a, w.z, w.w);
                        }
                    }
                }
        }
        return;
    }
    const uint4 *at[MT];
#pragma unroll
    for (int m = 0; m < MT; m++) at[m] = tile + (lane / 16) * PLANE + place(pixel_of(first + m, row));
#pragma unroll
    for (int tap = 0; tap < 9; tap++) {
        int shift = (tap / 3 - 1) * PITCH + tap % 3 - 1;
#pragma unroll
        for (int k = 0; k < DEPTH; k++) {
            uint4 b[NT];
#pragma unroll
            for (int n = 0; n < NT; n++) b[n] = weights[((tap * DEPTH + k) * DEPTH + first_column + n) * 32 + lane];
#pragma unroll
            for (int m = 0; m < MT; m++) {
                u32 a[4];
                load_matrices(a, at[m] + shift + 2 * k * PLANE);
#pragma unroll
                for (int n = 0; n < NT; n++) {
                    multiply(sums[m][n][0], a, b[n].x, b[n].y);
                    multiply(sums[m][n][1], a, b[n].z, b[n].w);
                }
            }
        }
    }
}

// Four values of a lane at one pixel, in the order of their channels.
__device__ __forceinline__ void four(float (&v)[4], const float (&sums)[2][4], int half) {
    v[0] = sums[0][2 * half], v[1] = sums[0][2 * half + 1];
    v[2] = sums[1][2 * half], v[3] = sums[1][2 * half + 1];
}

__device__ __forceinline__ void unpack_four(float (&v)[4], uint2 x) {
    v[0] = low(x.x), v[1] = high(x.x), v[2] = low(x.y), v[3] = high(x.y);
}

__device__ __forceinline__ uint2 pack_four(const float (&v)[4]) {
    return make_uint2(packed(v[0], v[1]), packed(v[2], v[3]));
}

// ---------------------------------------------------------------------------------------------------------- forward

#define STATISTICS 0
#define ACTIVATE 1
#define ADD_ACTIVATE 2

#define F_NT (C == 16 ? 1 : 2)
#define F_ACROSS (DEPTH / F_NT)          // warps side by side in the channels
#define F_DOWN (WARPS / F_ACROSS)        // and in the pixels
#define F_EACH (ROWS_OF_TILES / F_DOWN)  // rows of 16 pixels a warp
#define F_MT (F_EACH < 4 ? F_EACH : 4)
#define F_WALK (C == 16)                 // with more channels the weights of all taps do not fit

// Mean and squared deviations of values seen one by one: what is left after the first value is added up.
struct Moments {
    float origin, moved, squares;
};

__device__ __forceinline__ void merge(float &count, float &mean, float &deviations, float n, float m, float d) {
    float total = count + n;
    if (n > 0.f) {
        float away = m - mean;
        deviations += d + away * away * (count * n / total);
        mean += away * (n / total);
    }
    count = total;
}

// Whether this block is the last one of its run to get here, and so sees what the others wrote before. `word` is shared
// memory that nobody needs any more.
__device__ __forceinline__ bool last_of_run(u32 *arrived, u32 *word) {
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) *word = atomicAdd(arrived, 1u) + 1 == gridDim.x;
    __syncthreads();
    bool last = *word;
    __threadfence();
    __syncthreads();
    return last;
}

// The last block of a run adds what all its blocks left: a thread takes every GROUPS-th block of a channel.
#define GROUPS (THREADS / C)

#ifdef FORWARD
struct Norm {
    const float *weight, *bias;
    float *running_mean, *running_var, *table;
    u32 *arrived;
};

// Merges the moments of a run into the table of its norm, and moves the running statistics, as norm.finish_forward.
__device__ __forceinline__ void finish_norm(
    const float *partial, float *board, const Norm &norm, float momentum, float eps, int run, int runs, int batch, int each) {
    int channel = threadIdx.x % C, group = threadIdx.x / C, blocks = gridDim.x;
    float number = 0.f, mean = 0.f, deviations = 0.f;
    for (int block = group; block < blocks; block += GROUPS) {
        const float *from = partial + ((u64)run * blocks + block) * 2 * C + channel;
        float n = (float)(min(each, batch - block * each) * PIXELS), m = __ldcg(from), d = __ldcg(from + C);
        if (block == group) number = n, mean = m, deviations = d;
        else merge(number, mean, deviations, n, m, d);
    }
    float *own = board + threadIdx.x * 3;
    own[0] = number, own[1] = mean, own[2] = deviations;
    __syncthreads();
    if (group) return;
    for (int other = 1; other < min(GROUPS, blocks); other++)
        merge(number, mean, deviations, own[3 * C * other], own[3 * C * other + 1], own[3 * C * other + 2]);
    int here = run * C + channel, row = runs * C;
    float var = deviations / number, unbiased = deviations / max(number - 1.f, 1.f);
    norm.running_mean[here] += momentum * (mean - norm.running_mean[here]);
    norm.running_var[here] += momentum * (unbiased - norm.running_var[here]);
    float deviation = 1.f / sqrtf(var + eps), scale = norm.weight[here] * deviation;
    norm.table[here] = scale, norm.table[row + here] = norm.bias[here] - mean * scale;
    norm.table[2 * row + here] = mean, norm.table[3 * row + here] = deviation;
}

// What the shortcut brings to four channels of a pixel: itself, or if BORDER > 0 the mean of 2 × 2 pixels of a map with
// fewer channels, zeros on both sides of them.
__device__ __forceinline__ uint2 passed_by(const uint2 *shortcut, u64 image, int pixel, int quarter) {
#if BORDER == 0
    return shortcut[(image * PIXELS + pixel) * (C / 4) + quarter];
#else
    int own = quarter - BORDER / 4, narrow = (C - 2 * BORDER) / 4, inside = pixel % PIXELS;
    if (own < 0 || own >= narrow) return make_uint2(0, 0);
    u64 corner = ((image + pixel / PIXELS) * 2 * S + inside / S * 2) * 2 * S + inside % S * 2;
    float s[4], sum[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
    for (int c = 0; c < 4; c++) {
        unpack_four(s, shortcut[(corner + c / 2 * 2 * S + c % 2) * narrow + own]);
#pragma unroll
        for (int i = 0; i < 4; i++) sum[i] += 0.25f * s[i];
    }
    return pack_four(sum);
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) forward(
    const uint4 *x, const float *entry, const uint4 *weights, uint2 *out, float *partial, const float *table,
    const uint2 *shortcut, Norm norm, float momentum, float eps, int runs, int batch, int each) {
    SHARED;
    uint4 *tile = shared_memory, *packed_weights = tile + TILE, *staged = packed_weights + WEIGHTS;
    float *coefficient = (float *)(staged + UNITS);
    int run = blockIdx.y, lane = LANE, warp = threadIdx.x / 32;
    int start = blockIdx.x * each, stop = min(batch, start + each);
    int column = warp % F_ACROSS * F_NT, down = warp / F_ACROSS * F_EACH;
    x += (u64)run * batch * PIXELS * PLANES;
    read_ahead(staged, x + (u64)start * PIXELS * PLANES, min(I, stop - start));
    clear(tile);
    take_weights(packed_weights, weights, run);
#if ENTRY
    take_table(coefficient, entry, 2, runs, run);
#endif
#if EXIT == STATISTICS
    Moments seen[F_NT][4];
    int count = 0;
#pragma unroll
    for (int n = 0; n < F_NT; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) seen[n][i].origin = seen[n][i].moved = seen[n][i].squares = 0.f;
#else
    float scale[F_NT][4], shift[F_NT][4];
#pragma unroll
    for (int n = 0; n < F_NT; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int channel = (column + n) * 16 + lane % 4 * 4 + i;
            scale[n][i] = table[(u64)run * C + channel];
            shift[n][i] = table[((u64)runs + run) * C + channel];
        }
#endif
    for (int first = start; first < stop; first += I) {
        int images = min(I, stop - first);
        u64 here = ((u64)run * batch + first) * PIXELS;
        uint2 *to = out + here * (C / 4);
        wait_for_copies();
        __syncthreads();  // all have read the images before, or cleared the border
        {
#if ENTRY
            Eight scale_in = coefficients(coefficient, 0), shift_in = coefficients(coefficient, 1);
#endif
            int spot = first_spot();
#pragma unroll
            for (int turn = 0; turn < TURNS; turn++)
                if (there(turn, images)) {
                    uint4 piece = staged[turn * THREADS + threadIdx.x];
#if ENTRY
                    piece = normed(piece, scale_in, shift_in);
#endif
                    tile[spot + further(turn)] = piece;
                }
        }
        if (first + I < stop) read_ahead(staged, x + (u64)(first + I) * PIXELS * PLANES, min(I, stop - first - I));
        __syncthreads();
        for (int row = down; row < down + F_EACH; row += F_MT) {
            if (pixel_of(row, 0) >= images * PIXELS) break;
#if EXIT == ADD_ACTIVATE
            uint2 beside[F_MT][2][F_NT];
#pragma unroll
            for (int m = 0; m < F_MT; m++)
#pragma unroll
                for (int half = 0; half < 2; half++)
#pragma unroll
                    for (int n = 0; n < F_NT; n++) {
                        int pixel = pixel_of(row + m, lane / 4 + 8 * half), quarter = (column + n) * 4 + lane % 4;
                        beside[m][half][n] = make_uint2(0, 0);
                        if (pixel < images * PIXELS)
                            beside[m][half][n] = passed_by(shortcut, (u64)run * batch + first, pixel, quarter);
                    }
#endif
            float sums[F_MT][F_NT][2][4];
            convolve<F_MT, F_NT, F_WALK>(sums, tile, packed_weights, row, column);
#pragma unroll
            for (int m = 0; m < F_MT; m++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    int pixel = pixel_of(row + m, lane / 4 + 8 * half);
                    if (pixel >= images * PIXELS) continue;
#if EXIT == STATISTICS
                    count++;
#endif
#pragma unroll
                    for (int n = 0; n < F_NT; n++) {
                        float v[4];
                        four(v, sums[m][n], half);
#if EXIT == STATISTICS
#pragma unroll
                        for (int i = 0; i < 4; i++) {
                            if (count == 1) seen[n][i].origin = v[i];
                            float away = v[i] - seen[n][i].origin;
                            seen[n][i].moved += away;
                            seen[n][i].squares += away * away;
                        }
#else
#pragma unroll
                        for (int i = 0; i < 4; i++) v[i] = v[i] * scale[n][i] + shift[n][i];
#if EXIT == ADD_ACTIVATE
                        float s[4];
                        unpack_four(s, beside[m][half][n]);
#pragma unroll
                        for (int i = 0; i < 4; i++) v[i] += s[i];
#endif
#pragma unroll
                        for (int i = 0; i < 4; i++) v[i] = relu(v[i]);
#endif
                        to[pixel * (C / 4) + (column + n) * 4 + lane % 4] = pack_four(v);
                    }
                }
        }
    }
#if EXIT == STATISTICS
    __syncthreads();
    float *board = (float *)tile;  // [F_DOWN][C][3]
#pragma unroll
    for (int n = 0; n < F_NT; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float number = (float)count;
            float moved = count ? seen[n][i].moved / number : 0.f;
            float mean = seen[n][i].origin + moved, deviations = seen[n][i].squares - seen[n][i].moved * moved;
#pragma unroll
            for (int mask = 4; mask < 32; mask *= 2) {
                float m = exchanged(mean, mask), d = exchanged(deviations, mask), k = exchanged(number, mask);
                bool upper = lane & mask;  // both lanes merge in the same order, so that both have the same bits
                float c0 = upper ? k : number, m0 = upper ? m : mean, d0 = upper ? d : deviations;
                merge(c0, m0, d0, upper ? number : k, upper ? mean : m, upper ? deviations : d);
                number = c0, mean = m0, deviations = d0;
            }
            int channel = (column + n) * 16 + lane % 4 * 4 + i;
            if (lane < 4) {
                float *to = board + ((warp / F_ACROSS) * C + channel) * 3;
                to[0] = number, to[1] = mean, to[2] = deviations;
            }
        }
    __syncthreads();
    for (int channel = threadIdx.x; channel < C; channel += THREADS) {
        float number = 0.f, mean = 0.f, deviations = 0.f;
        for (int w = 0; w < F_DOWN; w++) {
            float *from = board + (w * C + channel) * 3;
            if (number == 0.f) number = from[0], mean = from[1], deviations = from[2];
            else merge(number, mean, deviations, from[0], from[1], from[2]);
        }
        float *to = partial + ((u64)run * gridDim.x + blockIdx.x) * 2 * C + channel;
        to[0] = mean, to[C] = deviations;
    }
    if (last_of_run(norm.arrived + run, (u32 *)board))
        finish_norm(partial, board, norm, momentum, eps, run, runs, batch, each);
#endif
}
#endif

// --------------------------------------------------------------------------------------------------------- backward

// With ROLES, half of the warps take the gradient of the maps; the others make the tiles of the image to come, and take
// the gradient of the weights. Neither role needs the other's registers, and they meet once an image.
#define ROLES (C < 64)  // with more channels, registers would not suffice
#define B_WARPS (ROLES ? WARPS / 2 : WARPS)
#define B_NT (C == 64 ? 2 : 1)
#define B_ACROSS (DEPTH / B_NT)
#define B_DOWN (B_WARPS / B_ACROSS)
#define B_EACH (ROWS_OF_TILES / B_DOWN)
#define B_MT (B_EACH < 2 ? B_EACH : 2)
#define W_NT (ROLES ? 1 : 2)                     // a warp sums up 16 × 16·W_NT of a tap's gradient
#define PIECES (DEPTH * (DEPTH / W_NT))
#define SPLIT (B_WARPS / PIECES)                 // warps that share a piece, each with its part of the pixels
#define W_EACH (ROWS_OF_TILES / SPLIT)
#define W_LONGEST 8                              // rows at once: all are unrolled
#define W_ROWS (W_EACH < W_LONGEST ? W_EACH : W_LONGEST)
#define SUMS (9 * C * C)
#define MAKERS (32 * B_WARPS)                    // threads that make tiles
#define STEPS (UNITS / MAKERS)                   // pieces of a map that a maker takes
#define RING (STEPS < 4 ? STEPS : 4)             // of these, how many are under way to it

#ifdef BACKWARD
// Inputs of each tap, transposed, times the gradients: over this warp's part of the pixels. Down a strip, an input row
// meets the gradients of the rows above, beside and below it, which are held.
__device__ __forceinline__ void add_weight_gradients(
    float (&kept)[9][W_NT][2][4], const uint4 *grads, const uint4 *inputs, int piece, int part) {
    int lane = LANE, matrix = lane / 8;
    const uint4 *from_grads = grads + (piece / DEPTH * W_NT * 2 + matrix / 2) * PLANE;
    const uint4 *from_inputs = inputs + (piece % DEPTH * 2 + matrix % 2) * PLANE;
    for (int first = part * W_EACH; first < (part + 1) * W_EACH; first += W_ROWS) {
#if S >= 16
        const uint4 *g_at = from_grads + place(pixel_of(first, matrix % 2 * 8 + lane % 8));
        const uint4 *x_at = from_inputs + place(pixel_of(first, matrix / 2 * 8 + lane % 8));
        u32 b[3][W_NT][4];
#pragma unroll
        for (int i = -1; i <= W_ROWS; i++) {
            if (i + 1 < W_ROWS)
#pragma unroll
                for (int n = 0; n < W_NT; n++) load_transposed(b[(i + 1) % 3][n], g_at + (i + 1) * PITCH + 2 * n * PLANE);
#pragma unroll
            for (int dx = -1; dx <= 1; dx++) {
                u32 a[4];
                load_transposed(a, x_at + i * PITCH + dx);
#pragma unroll
                for (int dy = -1; dy <= 1; dy++) {
                    if (i - dy < 0 || i - dy >= W_ROWS) continue;
#pragma unroll
                    for (int n = 0; n < W_NT; n++) {
                        const u32 (&g)[4] = b[(i - dy) % 3][n];
                        multiply(kept[3 * dy + dx + 4][n][0], a, g[0], g[1]);
                        multiply(kept[3 * dy + dx + 4][n][1], a, g[2], g[3]);
                    }
                }
            }
        }
#else
#pragma unroll
        for (int i = 0; i < W_ROWS; i++) {
            const uint4 *x_at = from_inputs + place(pixel_of(first + i, matrix / 2 * 8 + lane % 8));
            u32 a[4], b[W_NT][4];
#pragma unroll
            for (int n = 0; n < W_NT; n++)
                load_transposed(b[n], from_grads + place(pixel_of(first + i, matrix % 2 * 8 + lane % 8)) + 2 * n * PLANE);
#pragma unroll
            for (int tap = 0; tap < 9; tap++) {
                load_transposed(a, x_at + (tap / 3 - 1) * PITCH + tap % 3 - 1);
#pragma unroll
                for (int n = 0; n < W_NT; n++) {
                    multiply(kept[tap][n][0], a, b[n][0], b[n][1]);
                    multiply(kept[tap][n][1], a, b[n][2], b[n][3]);
                }
            }
        }
#endif
    }
}

// What a lane needs beside its sums: of MT × 16 pixels what the norm saw, and the shortcut's gradient.
struct Beside {
    uint2 under[B_MT][2][B_NT];
#if !INNER
    uint2 beside[B_MT][2][B_NT];
#endif
};

__device__ __forceinline__ void take_beside(
    Beside &taken, const uint2 *below, const uint2 *shortcut, int row, int column, int pixels) {
    int lane = LANE;
#pragma unroll
    for (int m = 0; m < B_MT; m++)
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int n = 0; n < B_NT; n++) {
                int pixel = pixel_of(row + m, lane / 4 + 8 * half);
                int at = pixel * (C / 4) + (column + n) * 4 + lane % 4;
                taken.under[m][half][n] = pixel < pixels ? below[at] : make_uint2(0, 0);
#if !INNER
                taken.beside[m][half][n] = pixel < pixels ? shortcut[at] : make_uint2(0, 0);
#endif
            }
}

// Σ g and Σ g · (below − mean) of a lane's channels.
struct Sums {
    float gradient[B_NT][4], moment[B_NT][4];
};

// The gradient of the maps at MT × 16 pixels.
__device__ __forceinline__ void leave_gradient(
    Sums &kept, const Beside &taken, const uint4 *grads, const uint4 *inputs, const uint4 *weights,
    const float *mean, uint2 *to, int row, int column, int pixels) {
    int lane = LANE;
    float sums[B_MT][B_NT][2][4];
    convolve<B_MT, B_NT, ROLES>(sums, grads, weights, row, column);
#pragma unroll
    for (int m = 0; m < B_MT; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int pixel = pixel_of(row + m, lane / 4 + 8 * half);
            if (pixel >= pixels) continue;
#pragma unroll
            for (int n = 0; n < B_NT; n++) {
                float v[4], b[4], open[4];
                four(v, sums[m][n], half);
                int quarter = (column + n) * 4 + lane % 4;
                unpack_four(b, taken.under[m][half][n]);
                unpack_four(open, ((uint2 *)(inputs + quarter / 2 * PLANE + place(pixel)))[quarter % 2]);
#if !INNER
                float s[4];
                unpack_four(s, taken.beside[m][half][n]);
#endif
#pragma unroll
                for (int i = 0; i < 4; i++) {
#if !INNER
                    v[i] += s[i];
#endif
                    v[i] = open[i] <= 0.f ? 0.f : v[i];
                    kept.gradient[n][i] += v[i];
                    kept.moment[n][i] += v[i] * (b[i] - mean[quarter * 4 + i]);
                }
                to[pixel * (C / 4) + quarter] = pack_four(v);
            }
        }
}

struct NormGradient {
    float *weight, *bias, *through;
    u32 *arrived;
};

// Adds the sums of a run: the gradients of its norm, and the coefficients of the gradient before it, as
// norm.finish_backward.
__device__ __forceinline__ void finish_norm_gradient(
    const float *partial, float *board, const float *table, const NormGradient &norm, int run, int runs, int batch) {
    int channel = threadIdx.x % C, group = threadIdx.x / C, blocks = gridDim.x;
    float plain = 0.f, moment = 0.f;
    for (int block = group; block < blocks; block += GROUPS) {
        const float *from = partial + ((u64)run * blocks + block) * 2 * C + channel;
        plain += __ldcg(from), moment += __ldcg(from + C);
    }
    float *own = board + threadIdx.x * 2;
    own[0] = plain, own[1] = moment;
    __syncthreads();
    if (group) return;
    for (int other = 1; other < min(GROUPS, blocks); other++) plain += own[2 * C * other], moment += own[2 * C * other + 1];
    int here = run * C + channel, row = runs * C;
    float scale = table[here], mean = table[2 * row + here], deviation = table[3 * row + here];
    float total = (float)(batch * PIXELS), weight = moment * deviation, beta = -scale * deviation * weight / total;
    norm.bias[here] = plain, norm.weight[here] = weight;
    norm.through[here] = scale, norm.through[row + here] = beta;
    norm.through[2 * row + here] = -scale * plain / total - beta * mean;
}

// Adds the sums of all warps in one order and writes them; `tiles` are no longer needed.
template <bool MAPS, bool WEIGHT_SUMS>
__device__ __forceinline__ void leave_sums(
    uint4 *tiles, Sums &added, const float (&kept)[9][W_NT][2][4], float *partial, float *weight_sums, int run,
    int piece, int part, int column, int warp, const float *table, const NormGradient &norm, int runs, int batch) {
    int lane = LANE;
    float *board = (float *)tiles;  // [SPLIT, 9, C, C]
#pragma unroll
    for (int tap = 0; WEIGHT_SUMS && tap < 9; tap++)
#pragma unroll
        for (int n = 0; n < W_NT; n++)
#pragma unroll
            for (int i = 0; i < 8; i++) {
                int in = piece % DEPTH * 16 + lane / 4 + i % 4 / 2 * 8;
                int to = (piece / DEPTH * W_NT + n) * 16 + i / 4 * 8 + lane % 4 * 2 + i % 2;
                board[((part * 9 + tap) * C + in) * C + to] = kept[tap][n][i / 4][i % 4];
            }
    __syncthreads();
    u64 block = (u64)run * gridDim.x + blockIdx.x;
    for (int i = threadIdx.x; i < SUMS; i += THREADS) {
        float sum = board[i];
        for (int other = 1; other < SPLIT; other++) sum += board[other * SUMS + i];
        weight_sums[block * SUMS + i] = sum;
    }
    __syncthreads();
#pragma unroll
    for (int n = 0; MAPS && n < B_NT; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
#pragma unroll
            for (int mask = 4; mask < 32; mask *= 2) {
                added.gradient[n][i] += exchanged(added.gradient[n][i], mask);
                added.moment[n][i] += exchanged(added.moment[n][i], mask);
            }
            if (lane < 4) {
                int channel = (column + n) * 16 + lane % 4 * 4 + i;
                board[((warp / B_ACROSS) * 2) * C + channel] = added.gradient[n][i];
                board[((warp / B_ACROSS) * 2 + 1) * C + channel] = added.moment[n][i];
            }
        }
    __syncthreads();
    for (int i = threadIdx.x; i < 2 * C; i += THREADS) {
        float sum = 0.f;
        for (int w = 0; w < B_DOWN; w++) sum += board[w * 2 * C + i];
        partial[block * 2 * C + i] = sum;
    }
    if (last_of_run(norm.arrived + run, (u32 *)board))
        finish_norm_gradient(partial, board, table, norm, run, runs, batch);
}

#if ROLES
static_assert(I == 1 && STEPS % RING == 0 && MAKERS / PLANES % S == 0, "a step takes whole rows of an image");
constexpr int AT_ONCE = C == 16 ? 4 : 1;  // groups of rows that are unrolled: with more channels, registers do not suffice

// What makes tiles: the thread `own` of MAKERS has a piece of every map a step, in a ring of pieces that are under way.
struct Maker {
    const uint4 *g, *y, *x;  // at the image to come
    uint4 *ring;
    int own;

    // Asks for a piece of the image to come, or of the one behind it, if there is one: a group of copies.
    __device__ __forceinline__ void ask(bool input, int step, bool there) {
        uint4 *to = ring + (step % RING) * MAKERS + own;
        int unit = step * MAKERS + own;
        if (there && input) copy_ahead(to + 2 * RING * MAKERS, x + unit);
        if (there && !input) copy_ahead(to, g + unit), copy_ahead(to + RING * MAKERS, y + unit);
        end_group();
    }

    // As if an image had been made before.
    __device__ __forceinline__ void begin() {
        for (int step = 0; step < RING; step++) ask(false, step, true);
#if INNER
        for (int step = RING; step < STEPS; step++) end_group();
        for (int step = 0; step < RING; step++) ask(true, step, true);
#endif
    }

    __device__ __forceinline__ int spot() const { return own % PLANES * PLANE + place(own / PLANES); }
    __device__ __forceinline__ static int further(int step) { return place(step * (MAKERS / PLANES)) - place(0); }

    // Groups since the one that a step waits for: those of the steps since then.
    template <int STEP> __device__ __forceinline__ static void wait() {
        wait_for_all_but<STEP < RING ? RING - 1 + (INNER ? STEPS : 1) : RING - 1>();
    }

    template <int STEP> __device__ __forceinline__ void make_grads(
        uint4 *to, const Eight &v0, const Eight &v1, const Eight &v2, bool more) {
        if constexpr (STEP < STEPS) {
            wait<STEP>();
            const uint4 *from = ring + STEP % RING * MAKERS + own;
            to[further(STEP)] = before_norm(from[0], from[RING * MAKERS], v0, v1, v2);
            ask(false, STEP + RING, STEP + RING < STEPS || more);
            make_grads<STEP + 1>(to, v0, v1, v2, more);
        }
    }

    template <int STEP> __device__ __forceinline__ void make_inputs(
        uint4 *to, const Eight &scale, const Eight &shift, bool more) {
        if constexpr (STEP < STEPS) {
            wait<STEP>();
            to[further(STEP)] = normed(ring[(2 * RING + STEP % RING) * MAKERS + own], scale, shift);
            ask(true, STEP + RING, STEP + RING < STEPS || more);
            make_inputs<STEP + 1>(to, scale, shift, more);
        }
    }

    // Makes the tiles of an image, and asks for the beginning of the next one, which lies behind it.
    __device__ __forceinline__ void make(uint4 *grads, uint4 *inputs, const float *coefficient, bool more) {
#if !INNER
        for (int step = 0; step < STEPS; step++) copy_ahead(inputs + spot() + further(step), x + step * MAKERS + own);
        end_group();
#endif
        make_grads<0>(
            grads + spot(), eight(coefficient, 0, own), eight(coefficient, 1, own), eight(coefficient, 2, own), more);
#if INNER
        make_inputs<0>(inputs + spot(), eight(coefficient, 3, own), eight(coefficient, 4, own), more);
#else
        wait_for_all_but<STEPS>();
#endif
        g += UNITS, y += UNITS, x += UNITS;
    }
};
#endif

// g and y: gradient behind the norm of the convolution's output y. x: what the convolution read, or with INNER what
// relu(norm(x)) of it was. below: what the norm before that relu saw (with INNER, x itself). Out: the gradient before
// that relu, its sums Σ g and Σ g · (below − mean), the sums [9, C, C] of the gradient of the weights, and what follows for
// the norm below from the sums of all blocks of a run.
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) backward(
    const uint4 *g, const uint4 *y, const float *through, const uint4 *weights, const uint4 *x, const uint2 *below,
    const float *table, const uint2 *shortcut, uint2 *out, float *partial, float *weight_sums, NormGradient norm,
    int runs, int batch, int each) {
    SHARED;
    uint4 *tiles = shared_memory, *packed_weights = tiles + TILE * (ROLES ? 4 : 2);  // gradients and inputs, ROLES: twice
    uint4 *staged = packed_weights + WEIGHTS;                                         // of the images to come
    float *coefficient = (float *)(staged + 3 * (ROLES ? RING * MAKERS : UNITS));  // three rows for the gradient, three of
    const float *mean = coefficient + 5 * C;                                         // the norm below
    int run = blockIdx.y, lane = LANE, warp = threadIdx.x / 32 % B_WARPS;
    bool makes = threadIdx.x >= 32 * B_WARPS;
    int start = blockIdx.x * each, stop = min(batch, start + each);
    int column = warp % B_ACROSS * B_NT, down = warp / B_ACROSS * B_EACH;
    int piece = warp % PIECES, part = warp / PIECES;
    u64 first_pixel = ((u64)run * batch + start) * PIXELS;
    g += first_pixel * PLANES, y += first_pixel * PLANES, x += first_pixel * PLANES;
    below += first_pixel * (C / 4), shortcut += first_pixel * (C / 4), out += first_pixel * (C / 4);
#if ROLES
    Maker maker = {g, y, x, staged, (int)threadIdx.x - MAKERS};
    Beside coming;
    if (makes) maker.begin();
    else take_beside(coming, below, shortcut, down, column, PIXELS);
#else
    read_ahead(staged, g, min(I, stop - start));
    read_ahead(staged + UNITS, y, min(I, stop - start));
    read_ahead(staged + 2 * UNITS, x, min(I, stop - start));
#endif
    for (int i = threadIdx.x; i < TILE * (ROLES ? 4 : 2); i += THREADS) tiles[i] = make_uint4(0, 0, 0, 0);
    take_weights(packed_weights, weights, run);
    take_table(coefficient, through, 3, runs, run);
    take_table(coefficient + 3 * C, table, 3, runs, run);
    Sums added;
#pragma unroll
    for (int n = 0; n < B_NT; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) added.gradient[n][i] = added.moment[n][i] = 0.f;
    float kept[9][W_NT][2][4];
#pragma unroll
    for (int tap = 0; tap < 9; tap++)
#pragma unroll
        for (int n = 0; n < W_NT; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) kept[tap][n][0][i] = kept[tap][n][1][i] = 0.f;

#if ROLES
    __syncthreads();
    if (makes) {  // both roles meet at as many barriers: what counts is how many threads arrive
        maker.make(tiles, tiles + TILE, coefficient, start + 1 < stop);
        for (int image = start; image < stop; image++) {
            __syncthreads();
            uint4 *own = tiles + (image - start) % 2 * 2 * TILE, *other = tiles + (image - start + 1) % 2 * 2 * TILE;
            if (image + 1 < stop) maker.make(other, other + TILE, coefficient, image + 2 < stop);
            add_weight_gradients(kept, own, own + TILE, piece, part);
        }
        __syncthreads();
        leave_sums<false, true>(
            tiles, added, kept, partial, weight_sums, run, piece, part, column, warp, table, norm, runs, batch);
        return;
    }
    for (int image = start; image < stop; image++) {
        __syncthreads();
        const uint4 *own = tiles + (image - start) % 2 * 2 * TILE;
#pragma unroll AT_ONCE
        for (int row = 0; row < B_EACH; row += B_MT) {
            Beside taken = coming;
            if (row + B_MT < B_EACH) take_beside(coming, below, shortcut, down + row + B_MT, column, PIXELS);
            else if (image + 1 < stop)
                take_beside(coming, below + PIXELS * (C / 4), shortcut + PIXELS * (C / 4), down, column, PIXELS);
            leave_gradient(added, taken, own, own + TILE, packed_weights, mean, out, down + row, column, PIXELS);
        }
        below += PIXELS * (C / 4), shortcut += PIXELS * (C / 4), out += PIXELS * (C / 4);
    }
    __syncthreads();
    leave_sums<true, false>(
            tiles, added, kept, partial, weight_sums, run, piece, part, column, warp, table, norm, runs, batch);
#else
    uint4 *grads = tiles, *inputs = tiles + TILE;
    for (int first = start; first < stop; first += I) {
        int images = min(I, stop - first);
        wait_for_copies();
        __syncthreads();
        {
            Eight v0 = coefficients(coefficient, 0), v1 = coefficients(coefficient, 1);
            Eight v2 = coefficients(coefficient, 2);
            int spot = first_spot();
#pragma unroll
            for (int turn = 0; turn < TURNS; turn++) {
                uint4 *own = staged + turn * THREADS + threadIdx.x;
                uint4 dy = make_uint4(0, 0, 0, 0);  // where an image is missing: adds nothing to the weights
                if (there(turn, images)) dy = before_norm(own[0], own[UNITS], v0, v1, v2);
                grads[spot + further(turn)] = dy;
            }
#if INNER
            Eight scale = coefficients(coefficient, 3), shift = coefficients(coefficient, 4);
#endif
#pragma unroll
            for (int turn = 0; turn < TURNS; turn++) {
                uint4 read = make_uint4(0, 0, 0, 0);
                if (there(turn, images)) {
                    read = staged[2 * UNITS + turn * THREADS + threadIdx.x];
#if INNER
                    read = normed(read, scale, shift);
#endif
                }
                inputs[spot + further(turn)] = read;
            }
        }
        g += I * PIXELS * PLANES, y += I * PIXELS * PLANES, x += I * PIXELS * PLANES;
        if (first + I < stop) {
            int coming = min(I, stop - first - I);
            read_ahead(staged, g, coming);
            read_ahead(staged + UNITS, y, coming);
            read_ahead(staged + 2 * UNITS, x, coming);
        }
        __syncthreads();
        for (int row = down; row < down + B_EACH; row += B_MT) {
            if (pixel_of(row, 0) >= images * PIXELS) break;
            Beside taken;
            take_beside(taken, below, shortcut, row, column, images * PIXELS);
            leave_gradient(added, taken, grads, inputs, packed_weights, mean, out, row, column, images * PIXELS);
        }
        below += I * PIXELS * (C / 4), shortcut += I * PIXELS * (C / 4), out += I * PIXELS * (C / 4);
        add_weight_gradients(kept, grads, inputs, piece, part);
    }
    __syncthreads();
    leave_sums<true, true>(
            tiles, added, kept, partial, weight_sums, run, piece, part, column, warp, table, norm, runs, batch);
#endif
}
#endif

// ------------------------------------------------------------------------------------------------------------- pack

#ifdef PACK
#define MOST_PACKED 16
struct Packed {
    const float *weights[MOST_PACKED];
};

// fp32 weights [R · C, C, 3, 3] of some convolutions → the pieces that lanes take, [convolutions, R, pieces]: of the product
// with maps, and with gradients (flipped).
extern "C" __global__ void pack(Packed from, uint4 *ahead, uint4 *back, int runs) {
    int row = blockIdx.y, run = row % runs, i = blockIdx.x * THREADS + threadIdx.x;
    if (i >= WEIGHTS) return;
    const float *weights = from.weights[row / runs];
    int lane = i % 32, n16 = i / 32 % DEPTH, k16 = i / 32 / DEPTH % DEPTH, tap = i / 32 / DEPTH / DEPTH;
    const float *own = weights + (u64)run * C * C * 9;
    u32 one[4], two[4];
#pragma unroll
    for (int piece = 0; piece < 4; piece++) {
        float v[2], w[2];
#pragma unroll
        for (int e = 0; e < 2; e++) {
            int k = k16 * 16 + lane % 4 * 2 + e + piece % 2 * 8;
            // Columns of the two products are dealt out so that a lane gets four channels side by side.
            int j = lane / 4, n = n16 * 16 + j / 2 * 4 + piece / 2 * 2 + j % 2;
            v[e] = own[(n * C + k) * 9 + tap];
            w[e] = own[(k * C + n) * 9 + 8 - tap];
        }
        one[piece] = packed(v[0], v[1]), two[piece] = packed(w[0], w[1]);
    }
    ahead[(u64)row * WEIGHTS + i] = make_uint4(one[0], one[1], one[2], one[3]);
    back[(u64)row * WEIGHTS + i] = make_uint4(two[0], two[1], two[2], two[3]);
}
#endif
