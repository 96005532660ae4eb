// Measures what this CPU can read and compute, all allowed cores together, and prints one JSON object.
// read: bytes/s from memory far beyond the last-level cache; cache_read: best bytes/s from any cache
// level; flops: FP32 FLOP/s of independent multiply-adds. Each figure is the best of several repeats.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>
#include <omp.h>

// As wide as the registers: wider vectors would be split through memory.
#if defined(__AVX512F__)
constexpr int kVecBytes = 64;
#elif defined(__AVX__)
constexpr int kVecBytes = 32;
#else
constexpr int kVecBytes = 16;
#endif
constexpr int kLanes = kVecBytes / sizeof(float);
typedef float vec __attribute__((vector_size(kVecBytes)));

static double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

static volatile float sink;

// Sums count vectors with eight independent chains, passes times over.
static float read_block(const vec* data, size_t count, size_t passes) {
    vec total = {};
    for (size_t pass = 0; pass < passes; ++pass) {
        vec sums[8] = {};
        for (size_t i = 0; i + 8 <= count; i += 8) {
            for (int k = 0; k < 8; ++k) sums[k] += data[i + k];
        }
        for (int k = 0; k < 8; ++k) total += sums[k];
        asm volatile("" : : "r"(data) : "memory");  // keeps the passes apart
    }
    float result = 0;
    for (int k = 0; k < kLanes; ++k) result += total[k];
    return result;
}

// Bytes per second with every thread reading its own share, or four interleaved streams of it.
static double read_rate(const vec* data, size_t count_per_thread, size_t passes, int streams, int threads) {
    float keep = 0;
    double begin = now();
#pragma omp parallel num_threads(threads) reduction(+ : keep)
    {
        const vec* mine = data + static_cast<size_t>(omp_get_thread_num()) * count_per_thread;
        if (streams == 1) {
            keep += read_block(mine, count_per_thread, passes);
        } else {
            const size_t quarter = count_per_thread / 4;
            vec sums[8] = {};
            for (size_t i = 0; i + 2 <= quarter; i += 2) {
                for (int s = 0; s < 4; ++s) {
                    sums[2 * s] += mine[s * quarter + i];
                    sums[2 * s + 1] += mine[s * quarter + i + 1];
                }
            }
            for (int k = 0; k < 8; ++k) keep += sums[k][0];
        }
    }
    double seconds = now() - begin;
    sink = keep;
    return double(count_per_thread) * sizeof(vec) * passes * threads / seconds;
}

static double multiply_add_rate(int threads) {
    const long rounds = 4000000;
    float keep = 0;
    double begin = now();
#pragma omp parallel num_threads(threads) reduction(+ : keep)
    {
        vec acc[12];
        for (int k = 0; k < 12; ++k) acc[k] = vec{} + 1.0f + 1e-3f * k;
        vec a = vec{} + 0.999f, b = vec{} + 1e-3f;
        for (long r = 0; r < rounds; ++r) {
            for (int k = 0; k < 12; ++k) acc[k] = acc[k] * a + b;
        }
        for (int k = 0; k < 12; ++k) keep += acc[k][0];
    }
    double seconds = now() - begin;
    sink = keep;
    return 2.0 * kLanes * 12 * double(rounds) * threads / seconds;
}

int main(int argc, char** argv) {
    const int threads = argc > 1 ? std::atoi(argv[1]) : omp_get_max_threads();
    const size_t bytes = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : size_t(1) << 29;
    const size_t per_thread = bytes / threads / sizeof(vec) / 16 * 16;
    vec* data = static_cast<vec*>(std::aligned_alloc(4096, per_thread * threads * sizeof(vec)));
    if (data == nullptr) return 1;
#pragma omp parallel num_threads(threads)
    {
        vec* mine = data + static_cast<size_t>(omp_get_thread_num()) * per_thread;
        for (size_t i = 0; i < per_thread; ++i) mine[i] = vec{} + 1.0f;
    }
    double memory = 0, cache = 0, flops = 0;
    for (int repeat = 0; repeat < 5; ++repeat) {
        for (int streams : {1, 4}) {
            double rate = read_rate(data, per_thread, 1, streams, threads);
            if (rate > memory) memory = rate;
        }
    }
    for (size_t kib : {16, 128, 512, 2048}) {
        const size_t count = kib * 1024 / sizeof(vec);
        if (count > per_thread) continue;
        for (int repeat = 0; repeat < 4; ++repeat) {
            double rate = read_rate(data, count, (size_t(64) << 20) / (kib * 1024), 1, threads);
            if (rate > cache) cache = rate;
        }
    }
    for (int repeat = 0; repeat < 3; ++repeat) {
        double rate = multiply_add_rate(threads);
        if (rate > flops) flops = rate;
    }
    std::free(data);
    std::printf("{\"read\": %.6e, \"cache_read\": %.6e, \"flops\": %.6e}\n", memory, cache, flops);
    return 0;
}
