// The kernels of `gpu`, for float32 and float64: `reference` says what each computes.
//
// To be compiled without contraction of a product and a sum (--fmad=false): a fused one is rounded
// once, and the definition rounds twice. No headers, no shared memory, no barriers: threads know
// nothing of each other, and so the tests compile this very text for the CPU and run it there.

typedef unsigned int u32;
typedef unsigned long long u64;

// Each thread has the elements from its own number on, as many apart as there are threads.
#define EACH(i, n)                                                                          \
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < (n);                       \
         i += (u64)gridDim.x * blockDim.x)

template <typename real>
__device__ inline void accumulate(real* out, const real* x, u64 n) {
    EACH(i, n) out[i] = out[i] + x[i];
}

template <typename real>
__device__ inline void blend(real* out, const real* x, real a, real b, u64 n) {
    EACH(i, n) out[i] = b * out[i] + a * x[i];
}

template <typename real>
__device__ inline void exchange(real* total, real* own, const real* x, u64 n) {
    EACH(i, n) {
        real brought = x[i];
        total[i] = total[i] + (brought - own[i]);
        own[i] = brought;
    }
}

template <typename real>
__device__ inline void sgd(real* params, const real* grads, real rate, real scale, u64 n) {
    EACH(i, n) params[i] = params[i] - rate * (scale * grads[i]);
}

template <typename real>
__device__ inline void momentum(
    real* params, real* velocity, const real* grads, real rate, real beta, real scale, u64 n) {
    EACH(i, n) {
        real moved = beta * velocity[i] + scale * grads[i];
        velocity[i] = moved;
        params[i] = params[i] - rate * moved;
    }
}

__device__ inline float root(float x) { return __fsqrt_rn(x); }
__device__ inline double root(double x) { return __dsqrt_rn(x); }

template <typename real>
__device__ inline void move_moments(
    real* mean, real* square, real gradient, real beta1, real new1, real beta2, real new2) {
    *mean = beta1 * *mean + new1 * gradient;
    *square = beta2 * *square + new2 * (gradient * gradient);
}

template <typename real>
__device__ inline real direction(
    real param, real mean, real square, real first, real second, real eps, real decay) {
    return (first * mean) / (second * root(square) + eps) + decay * param;
}

template <typename real>
__device__ inline void adam(
    real* params, real* mean, real* square, const real* grads, real rate, real beta1, real new1,
    real beta2, real new2, real first, real second, real eps, real decay, real scale, u64 n) {
    EACH(i, n) {
        real m = mean[i], v = square[i], w = params[i];
        move_moments(&m, &v, scale * grads[i], beta1, new1, beta2, new2);
        mean[i] = m;
        square[i] = v;
        params[i] = w - rate * direction(w, m, v, first, second, eps, decay);
    }
}

template <typename real>
__device__ inline void lamb(
    real* params, const real* mean, const real* square, real rate, real first, real second,
    real eps, real decay, u64 n) {
    EACH(i, n) {
        real w = params[i];
        params[i] = w - rate * direction(w, mean[i], square[i], first, second, eps, decay);
    }
}

// Of a sum of squares, as `reference` has them.
#define LANES 256
#define STRETCH 65536

// The elements of a lane of one stretch of `size` elements; lanes of all stretches are in one row.
#define OF_LANE(i, lane, size)                                                              \
    for (u64 i = (lane) / LANES * STRETCH + (lane) % LANES,                                 \
             end = (lane) / LANES * STRETCH + STRETCH;                                      \
         i < end && i < (size); i += LANES)

template <typename real>
__device__ inline void sum_of_squares(double* lanes, const real* x, u64 size, u64 n) {
    EACH(lane, n) {
        double sum = 0;
        OF_LANE(i, lane, size) sum = sum + (double)x[i] * (double)x[i];
        lanes[lane] = sum;
    }
}

template <typename real>
__device__ inline void lamb_norms(
    double* ours, double* theirs, const real* params, real* mean, real* square,
    const real* grads, real beta1, real new1, real beta2, real new2, real first, real second,
    real eps, real decay, real scale, u64 size, u64 n) {
    EACH(lane, n) {
        double weights = 0, directions = 0;
        OF_LANE(i, lane, size) {
            real m = mean[i], v = square[i], w = params[i];
            move_moments(&m, &v, scale * grads[i], beta1, new1, beta2, new2);
            mean[i] = m;
            square[i] = v;
            double u = direction(w, m, v, first, second, eps, decay);
            weights = weights + (double)w * (double)w;
            directions = directions + u * u;
        }
        ours[lane] = weights;
        theirs[lane] = directions;
    }
}

extern "C" __global__ void add_lanes(double* sums, const double* lanes, u64 n) {
    EACH(stretch, n) {
        double sum = 0;
        for (u64 j = 0; j < LANES; ++j) sum = sum + lanes[stretch * LANES + j];
        sums[stretch] = sum;
    }
}

// Up to eight inputs at a time; how many is known to the compiler, which has all of them fetched
// before it adds the first. `goes_on`: to what is in `out` already.
template <typename real, int count, bool goes_on>
__device__ inline void scaled_sum(
    real* __restrict__ out, const real* __restrict__ a, const real* __restrict__ b,
    const real* __restrict__ c, const real* __restrict__ d, const real* __restrict__ e,
    const real* __restrict__ f, const real* __restrict__ g, const real* __restrict__ h, real p,
    real q, real r, real s, real t, real u, real v, real w, u64 n) {
    EACH(i, n) {
        real sum = p * a[i];
        if (goes_on) sum = out[i] + sum;
        if (count > 1) sum = sum + q * b[i];
        if (count > 2) sum = sum + r * c[i];
        if (count > 3) sum = sum + s * d[i];
        if (count > 4) sum = sum + t * e[i];
        if (count > 5) sum = sum + u * f[i];
        if (count > 6) sum = sum + v * g[i];
        if (count > 7) sum = sum + w * h[i];
        out[i] = sum;
    }
}

// Which of several pieces, of which each starts where the table says, has element i.
__device__ inline u64 piece_of(u64 i, const u64* starts, u64 count) {
    u64 low = 0, high = count;  // the piece is at `low` or behind it, and before `high`
    while (high - low > 1) {
        u64 middle = (low + high) / 2;
        if (starts[middle] <= i)
            low = middle;
        else
            high = middle;
    }
    return low;
}

// `table`: where each piece starts in `out`, then the address of each. None is empty.
template <typename real>
__device__ inline void pack(real* out, const u64* table, u64 count, real scale, u64 n) {
    EACH(i, n) {
        u64 which = piece_of(i, table, count);
        const real* piece = (const real*)table[count + which];
        out[i] = scale * piece[i - table[which]];
    }
}

// As words, so that nothing is done to the bits.
template <typename word>
__device__ inline void unpack(const word* flat, const u64* table, u64 count, u64 n) {
    EACH(i, n) {
        u64 which = piece_of(i, table, count);
        word* piece = (word*)table[count + which];
        piece[i - table[which]] = flat[i];
    }
}

template <typename real>
__device__ inline void finite(int* broken, const real* x, u64 n) {
    EACH(i, n) if (x[i] - x[i] != (real)0) *broken = 1;
}

// Threads of one number within their blocks add to one slot: so those that run together write to
// neighbours. As many slots as a block has threads.
extern "C" __global__ void digest(
    u64* slots, const u32* words, u32 start, u32 position, u32 mix, u64 n) {
    u64 sum = 0;
    EACH(i, n) {
        u32 u = words[i] + ((u32)i + start) * position;
        u32 v = (u ^ u >> 16) * mix;
        u64 mixed = v ^ v >> 15;
        sum += mixed * mixed;
    }
    atomicAdd(&slots[threadIdx.x], sum);
}

#define SUM(real, name, count, goes_on)                                                     \
    extern "C" __global__ void name##_##count##_##real(                                     \
        real* out, const real* a, const real* b, const real* c, const real* d, const real* e, \
        const real* f, const real* g, const real* h, real p, real q, real r, real s, real t, \
        real u, real v, real w, u64 n) {                                                    \
        scaled_sum<real, count, goes_on>(                                                   \
            out, a, b, c, d, e, f, g, h, p, q, r, s, t, u, v, w, n);                        \
    }

#define SUMS(real, name, goes_on)                                                           \
    SUM(real, name, 1, goes_on)                                                             \
    SUM(real, name, 2, goes_on)                                                             \
    SUM(real, name, 3, goes_on)                                                             \
    SUM(real, name, 4, goes_on)                                                             \
    SUM(real, name, 5, goes_on)                                                             \
    SUM(real, name, 6, goes_on)                                                             \
    SUM(real, name, 7, goes_on)                                                             \
    SUM(real, name, 8, goes_on)

#define ALL(real, word)                                                                     \
    extern "C" __global__ void accumulate_##real(real* out, const real* x, u64 n) {         \
        accumulate(out, x, n);                                                              \
    }                                                                                       \
    extern "C" __global__ void blend_##real(                                                \
        real* out, const real* x, real a, real b, u64 n) {                                  \
        blend(out, x, a, b, n);                                                             \
    }                                                                                       \
    extern "C" __global__ void exchange_##real(                                             \
        real* total, real* own, const real* x, u64 n) {                                     \
        exchange(total, own, x, n);                                                         \
    }                                                                                       \
    extern "C" __global__ void sgd_##real(                                                  \
        real* params, const real* grads, real rate, real scale, u64 n) {                    \
        sgd(params, grads, rate, scale, n);                                                 \
    }                                                                                       \
    extern "C" __global__ void momentum_##real(                                             \
        real* params, real* velocity, const real* grads, real rate, real beta, real scale,  \
        u64 n) {                                                                            \
        momentum(params, velocity, grads, rate, beta, scale, n);                            \
    }                                                                                       \
    extern "C" __global__ void adam_##real(                                                 \
        real* params, real* mean, real* square, const real* grads, real rate, real beta1,   \
        real new1, real beta2, real new2, real first, real second, real eps, real decay,    \
        real scale, u64 n) {                                                                \
        adam(params, mean, square, grads, rate, beta1, new1, beta2, new2, first, second,    \
             eps, decay, scale, n);                                                         \
    }                                                                                       \
    extern "C" __global__ void lamb_norms_##real(                                           \
        double* ours, double* theirs, const real* params, real* mean, real* square,         \
        const real* grads, real beta1, real new1, real beta2, real new2, real first,        \
        real second, real eps, real decay, real scale, u64 size, u64 n) {                   \
        lamb_norms(ours, theirs, params, mean, square, grads, beta1, new1, beta2, new2,     \
                   first, second, eps, decay, scale, size, n);                              \
    }                                                                                       \
    extern "C" __global__ void lamb_##real(                                                 \
        real* params, const real* mean, const real* square, real rate, real first,          \
        real second, real eps, real decay, u64 n) {                                         \
        lamb(params, mean, square, rate, first, second, eps, decay, n);                     \
    }                                                                                       \
    extern "C" __global__ void sum_of_squares_##real(                                       \
        double* lanes, const real* x, u64 size, u64 n) {                                    \
        sum_of_squares(lanes, x, size, n);                                                  \
    }                                                                                       \
    extern "C" __global__ void pack_##real(                                                 \
        real* out, const u64* table, u64 count, real scale, u64 n) {                        \
        pack(out, table, count, scale, n);                                                  \
    }                                                                                       \
    extern "C" __global__ void unpack_##real(                                               \
        const word* flat, const u64* table, u64 count, u64 n) {                             \
        unpack(flat, table, count, n);                                                      \
    }                                                                                       \
    extern "C" __global__ void finite_##real(int* broken, const real* x, u64 n) {           \
        finite(broken, x, n);                                                               \
    }                                                                                       \
    SUMS(real, sum, false)                                                                  \
    SUMS(real, add, true)

ALL(float, u32)
ALL(double, u64)
