#include "emulate.h"
// clang-format off
#include STAGE
#include MORE

extern "C" void run_pack(const Packed *from, uint4 *ahead, uint4 *back, int runs, int rows) {
    launch((WEIGHTS + THREADS - 1) / THREADS, rows, THREADS, 16, [=] { pack(*from, ahead, back, runs); });
}
#ifdef BLOCKS
extern "C" void run_blocks(const uint4 *x, const uint4 *shortcut, const uint4 *weights, const float *tables, uint2 *out,
                           uint4 *halved, int convolutions, int runs, int batch, int each, int per_run, int per_image,
                           int per_channel, int per_row, int per_column, int chunks, int bytes) {
    launch(chunks, runs, THREADS, bytes, [=] {
        blocks(x, shortcut, weights, tables, out, halved, convolutions, runs, batch, each, per_run, per_image, per_channel,
               per_row, per_column);
    });
}
#endif
#ifdef FORWARD
extern "C" void run_forward(const uint4 *x, const float *entry, const uint4 *weights, uint2 *out, float *partial,
                            const float *table, const uint2 *shortcut, const Norm *norm, float momentum, float eps, int runs,
                            int batch, int each, int chunks, int bytes) {
    launch(chunks, runs, THREADS, bytes, [=] {
        forward(x, entry, weights, out, partial, table, shortcut, *norm, momentum, eps, runs, batch, each);
    });
}
#endif
#ifdef BACKWARD
extern "C" void run_backward(const uint4 *g, const uint4 *y, const float *through, const uint4 *weights, const uint4 *x,
                             const uint2 *below, const float *table, const uint2 *shortcut, uint2 *out, float *partial,
                             float *weight_sums, const NormGradient *norm, int runs, int batch, int each, int chunks,
                             int bytes) {
    launch(chunks, runs, THREADS, bytes, [=] {
        backward(g, y, through, weights, x, below, table, shortcut, out, partial, weight_sums, *norm, runs, batch, each);
    });
}
#endif
