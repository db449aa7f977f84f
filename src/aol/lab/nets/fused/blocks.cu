// Evaluation only: all blocks of a stage in one kernel. Follows stage.cu, whose layouts and instructions it uses.
//
// A block of threads takes whole images of one run, I at a time, and keeps them in shared memory from the first
// convolution of the stage to the last: `kept` holds what a residual block began with, `inner` what lies between its two
// convolutions. Weights come in slices of sixteen input channels, the next one while the last is multiplied.
// Between convolutions values are rounded to bf16, as they are where each convolution is a kernel of its own.
//
// STEM > 0: the network's first stage, stem included: x are images of STEM channels, in fp32.
// STEM = 0: a stage behind one that halved its map: x is what the second convolution of its first block reads, and the
// shortcut of that block, without C / 4 channels on both sides, goes into `kept`.
// HALVE: the next stage's first convolution, of stride 2 and with twice as many channels, is done here. Out go its
// outputs, and the halved map that is the shortcut of its block; the stage's own outputs stay in shared memory.
// So every stage begins with a convolution from `inner` to `kept`, and goes on with whole residual blocks.

#ifdef BLOCKS
#define SLICE (9 * DEPTH * 32)                   // 16-byte pieces of the weights of sixteen input channels
#define DOWN (ROWS_OF_TILES * DEPTH / WARPS)     // a warp sums up sixteen channels of DOWN rows of sixteen pixels
#define WIDE (S >= 16)
#define BESIDE (WIDE ? 8 : PIXELS)               // from a lane's first pixel of a row to its second
#define BESIDE_SPOT (WIDE ? 8 : AREA)            // the same in a plane
static_assert(DOWN * WARPS == ROWS_OF_TILES * DEPTH && S % DOWN == 0, "a warp's rows lie one below the other");
static_assert(WIDE || I % 2 == 0, "maps eight pixels wide are multiplied two by two");

// As `pixel_of`, but in maps eight pixels wide sixteen pixels are the same row of two images: so one can walk down there.
__device__ __forceinline__ int pixel_down(int sixteen, int within) {
#if S >= 16
    return pixel_of(sixteen, within);
#else
    return (sixteen / S * 2 + within / S) * PIXELS + sixteen % S * S + within % S;
#endif
}

// Begin to copy a slice: of the convolution `slice / DEPTH`, packed as [9, DEPTH, DEPTH, 32] pieces.
__device__ __forceinline__ void fetch_slice(uint4 *to, const uint4 *weights, int slice, int runs, int run) {
    const uint4 *from = weights + ((u64)(slice / DEPTH) * runs + run) * WEIGHTS + slice % DEPTH * (DEPTH * 32);
#pragma unroll
    for (int turn = 0; turn < (SLICE + THREADS - 1) / THREADS; turn++) {
        int i = turn * THREADS + threadIdx.x, tap = i / (DEPTH * 32);
        if (i < SLICE) copy_ahead(to + i, from + tap * (DEPTH * DEPTH * 32) + i % (DEPTH * 32));
    }
}

#if STEM > 0
static_assert(STEM <= 8 && I * PIXELS % THREADS == 0, "the channels of images are one plane");
// Images, rounded, into a tile whose other channels are zero; `kept`, which the first convolution adds, becomes zero.
__device__ __forceinline__ void take_images(
    uint4 *tile, uint4 *kept, const float *from, int images, int per_image, int per_channel, int per_row, int per_column) {
#pragma unroll
    for (int turn = 0; turn < I * PIXELS / THREADS; turn++) {
        int pixel = turn * THREADS + threadIdx.x, inside = pixel % PIXELS, to = place(pixel);
        if (pixel >= images * PIXELS) continue;
        const float *own = from + (u64)(pixel / PIXELS) * per_image + inside / S * per_row + inside % S * per_column;
        float v[8];
#pragma unroll
        for (int c = 0; c < 8; c++) v[c] = c < STEM ? own[(u64)c * per_channel] : 0.f;
        tile[to] = make_uint4(packed(v[0], v[1]), packed(v[2], v[3]), packed(v[4], v[5]), packed(v[6], v[7]));
        kept[to] = make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int plane = 1; plane < PLANES; plane++)
            tile[plane * PLANE + to] = kept[plane * PLANE + to] = make_uint4(0, 0, 0, 0);
    }
}
#else
static_assert(C >= 32, "a stage behind another has at least twice as many channels as the first");
#define NARROW (PLANES / 2)
#define MARGIN (PLANES / 4)
// Begin to copy images into a tile.
__device__ __forceinline__ void fetch_images(uint4 *tile, const uint4 *from, int images) {
#pragma unroll 1  // addresses of all turns, held through the stage, would fill the registers
    for (int turn = 0; turn < TURNS; turn++) {
        int unit = turn * THREADS + threadIdx.x;
        if (there(turn, images)) copy_ahead(tile + unit % PLANES * PLANE + place(unit / PLANES), from + unit);
    }
}

// Begin to copy the shortcut, NARROW planes, into the middle of a tile; the planes around it become zero.
__device__ __forceinline__ void fetch_shortcut(uint4 *tile, const uint4 *from, int images) {
#pragma unroll 1
    for (int turn = 0; turn < TURNS; turn++) {
        int unit = turn * THREADS + threadIdx.x, plane = unit % PLANES, own = plane - MARGIN, pixel = unit / PLANES;
        uint4 *to = tile + plane * PLANE + place(pixel);
        if (!there(turn, images)) continue;
        if (own < 0 || own >= NARROW) *to = make_uint4(0, 0, 0, 0);
        else copy_ahead(to, from + pixel * NARROW + own);
    }
}
#endif

// Add the products of one slice. `at`: this lane's part of the first row, in the planes of the slice; `weights`: its
// piece of the first tap. A row of inputs is loaded once for the three rows of outputs that need it.
__device__ __forceinline__ void add_slice(float (&sums)[DOWN][2][4], const uint4 *at, const uint4 *weights) {
#pragma unroll
    for (int dx = -1; dx <= 1; dx++) {
        uint4 b[3];
#pragma unroll
        for (int dy = -1; dy <= 1; dy++) b[dy + 1] = weights[(3 * dy + dx + 4) * (DEPTH * 32)];
#pragma unroll
        for (int i = -1; i <= DOWN; i++) {
            if (DOWN == S && (i < 0 || i == S)) continue;  // the border, zeros
            u32 a[4];
            load_matrices(a, at + i * PITCH + dx);
#pragma unroll
            for (int dy = -1; dy <= 1; dy++) {
                if (i - dy < 0 || i - dy >= DOWN) continue;
                multiply(sums[i - dy][0], a, b[dy + 1].x, b[dy + 1].y);
                multiply(sums[i - dy][1], a, b[dy + 1].z, b[dy + 1].w);
            }
        }
    }
}

// A warp's sums through the norm, with what `kept` holds if they END a residual block, and relu: into a tile or, from the
// LAST convolution, to global memory. `pixel`: the lane's first pixel in the images; `images` says which exist.
template <bool END, bool LAST>
__device__ __forceinline__ void leave(
    const float (&sums)[DOWN][2][4], const float *coefficient, const uint4 *kept, uint2 *to, int quarter, int pixel,
    int images) {
    float scale[4], shift[4];
#pragma unroll
    for (int i = 0; i < 4; i++) scale[i] = coefficient[quarter * 4 + i], shift[i] = coefficient[C + quarter * 4 + i];
    int spot = (quarter / 2 * PLANE + place(pixel)) * 2 + quarter % 2;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (!WIDE && half && pixel + BESIDE >= images * PIXELS) continue;  // the second of two images is missing
#pragma unroll
        for (int m = 0; m < DOWN; m++) {
            int here = spot + (m * PITCH + half * BESIDE_SPOT) * 2;
            float v[4];
            four(v, sums[m], half);
#pragma unroll
            for (int i = 0; i < 4; i++) v[i] = v[i] * scale[i] + shift[i];
            if (END) {
                float s[4];
                unpack_four(s, ((const uint2 *)kept)[here]);
#pragma unroll
                for (int i = 0; i < 4; i++) v[i] += s[i];
            }
            to[LAST ? (pixel + m * S + half * BESIDE) * (C / 4) + quarter : here] =
                make_uint2(packed_relu(v[0], v[1]), packed_relu(v[2], v[3]));
        }
    }
}

#if HALVE
#define HALF (S / 2)
#define FEW (DOWN / 4)  // a warp sums up sixteen channels of so many times sixteen pixels of the halved map
static_assert(FEW > 0 && HALF >= 8, "eight pixels of the halved map are of one row");

// The place in a plane of the middle of what pixel `pixel` of the halved maps sees.
__device__ __forceinline__ int place_below(int pixel) {
    int image = pixel / (HALF * HALF), inside = pixel % (HALF * HALF);
    return image * AREA + (inside / HALF * 2 + 1) * PITCH + inside % HALF * 2 + 1;
}

// As `add_slice`, two pixels apart.
__device__ __forceinline__ void add_halving_slice(
    float (&sums)[DOWN][2][4], const uint4 *tile, const uint4 *weights, int first) {
    const uint4 *at[FEW];
#pragma unroll
    for (int m = 0; m < FEW; m++) at[m] = tile + LANE / 16 * PLANE + place_below(first + m * 16 + LANE % 16);
#pragma unroll
    for (int tap = 0; tap < 9; tap++) {
        uint4 b = weights[tap * (DEPTH * 32)];
#pragma unroll
        for (int m = 0; m < FEW; m++) {
            u32 a[4];
            load_matrices(a, at[m] + (tap / 3 - 1) * PITCH + tap % 3 - 1);
            multiply(sums[m][0], a, b.x, b.y);
            multiply(sums[m][1], a, b.z, b.w);
        }
    }
}

// Sums of the halving convolution through its norm and relu, to channels of [.., 2 · C].
__device__ __forceinline__ void leave_halved(
    const float (&sums)[DOWN][2][4], const float *coefficient, uint2 *to, int quarter, int first, int images) {
#pragma unroll
    for (int m = 0; m < FEW; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int pixel = first + m * 16 + LANE / 4 + 8 * half;
            if (pixel >= images * HALF * HALF) continue;
            float v[4];
            four(v, sums[m], half);
#pragma unroll
            for (int i = 0; i < 4; i++) v[i] = v[i] * coefficient[quarter * 4 + i] + coefficient[C + quarter * 4 + i];
            to[pixel * (C / 2) + quarter] = make_uint2(packed_relu(v[0], v[1]), packed_relu(v[2], v[3]));
        }
}

// The mean of 2 × 2 pixels, eight channels a thread.
__device__ __forceinline__ void leave_shortcut(uint4 *to, const uint4 *tile, int images) {
    for (int unit = threadIdx.x; unit < images * HALF * HALF * PLANES; unit += THREADS) {
        const uint4 *from = tile + unit % PLANES * PLANE + place_below(unit / PLANES);
        float sum[8] = {0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f};
#pragma unroll
        for (int c = 0; c < 4; c++) {
            uint4 read = from[c / 2 * PITCH + c % 2];
            u32 part[4] = {read.x, read.y, read.z, read.w};
#pragma unroll
            for (int i = 0; i < 4; i++) sum[2 * i] += 0.25f * low(part[i]), sum[2 * i + 1] += 0.25f * high(part[i]);
        }
        to[unit] = make_uint4(packed(sum[0], sum[1]), packed(sum[2], sum[3]), packed(sum[4], sum[5]), packed(sum[6], sum[7]));
    }
}
#endif

// x → out [R, B, S, S, C], through `convolutions` of them, the stem counted: weights [convolutions, R, WEIGHTS] as `pack` leaves them,
// tables [convolutions, 4, R, C] of their norms, of which the first two rows, scale and shift, are used. With HALVE two
// more of each, for the lower and the upper half of the channels of out [R, B, S / 2, S / 2, 2 · C]. The last five
// numbers are strides of the images.
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) blocks(
    const uint4 *x, const uint4 *shortcut, const uint4 *weights, const float *tables, uint2 *out, uint4 *halved,
    int convolutions, int runs, int batch, int each, int per_run, int per_image, int per_channel, int per_row,
    int per_column) {
    SHARED;
    uint4 *kept = shared_memory, *inner = kept + TILE, *slices = inner + TILE;
    float *coefficient = (float *)(slices + 2 * SLICE);  // [steps, 2, C]
    int steps = convolutions + 2 * HALVE, last = steps * DEPTH - 1;
    int run = blockIdx.y, lane = LANE, warp = threadIdx.x / 32;
    int start = blockIdx.x * each, stop = min(batch, start + each);
    int column = warp % DEPTH, down = warp / DEPTH * DOWN;
    int pixel = pixel_down(down, lane / 4);
    int read_at = lane / 16 * PLANE + place(pixel_down(down, lane % 16));
    fetch_slice(slices, weights, 0, runs, run);
    clear(kept);
    clear(inner);
    for (int i = threadIdx.x; i < steps * 2 * C; i += THREADS)
        coefficient[i] = tables[((u64)(i / (2 * C) * 4 + i / C % 2) * runs + run) * C + i % C];
    int turn = 0;  // which of the two slices is next
    for (int first = start; first < stop; first += I) {
        int images = min(I, stop - first);
        u64 here = (u64)run * batch + first;
        bool busy = pixel_down(down, 0) < images * PIXELS;
        __syncthreads();  // the tiles are cleared, or all have read the images before
#if STEM > 0
        const float *from = (const float *)x + (u64)run * per_run + (u64)first * per_image;
        take_images(inner, kept, from, images, per_image, per_channel, per_row, per_column);
#else
        fetch_images(inner, x + here * PIXELS * PLANES, images);
        fetch_shortcut(kept, shortcut + here * PIXELS * NARROW, images);
#endif
        for (int number = 0; number < steps; number++) {
            bool end = number % 2 == 0;
            float sums[DOWN][2][4];
#pragma unroll
            for (int m = 0; m < DOWN; m++)
#pragma unroll
                for (int i = 0; i < 4; i++) sums[m][0][i] = sums[m][1][i] = 0.f;
#pragma unroll 1
            for (int k = 0; k < DEPTH; k++, turn ^= 1) {
                int slice = number * DEPTH + k;
                wait_for_copies();
                __syncthreads();  // this slice is there for all; all have used the last one and written their outputs
                if (slice < last) fetch_slice(slices + (turn ^ 1) * SLICE, weights, slice + 1, runs, run);
                else if (first + I < stop) fetch_slice(slices + (turn ^ 1) * SLICE, weights, 0, runs, run);
                const uint4 *piece = slices + turn * SLICE + column * 32 + lane;
#if HALVE
                if (number >= convolutions) add_halving_slice(sums, kept + 2 * k * PLANE, piece, down / 4 * 16);
                else
#endif
                if (busy) add_slice(sums, (end ? inner : kept) + read_at + 2 * k * PLANE, piece);
            }
            const float *own = coefficient + number * 2 * C;
            int quarter = column * 4 + lane % 4;
#if HALVE
            if (number >= convolutions) {
                uint2 *to = out + here * (HALF * HALF) * (C / 2) + (number - convolutions) * (C / 4);
                leave_halved(sums, own, to, quarter, down / 4 * 16, images);
                if (number == convolutions) leave_shortcut(halved + here * (HALF * HALF) * PLANES, kept, images);
                continue;
            }
#endif
            if (!busy) continue;
            if (!end) leave<false, false>(sums, own, kept, (uint2 *)inner, quarter, pixel, images);
            else if (HALVE || number + 1 < steps) leave<true, false>(sums, own, kept, (uint2 *)kept, quarter, pixel, images);
            else leave<true, true>(sums, own, kept, out + here * PIXELS * (C / 4), quarter, pixel, images);
        }
    }
}
#endif
