// The kernels of `gpu` that narrow sums of float32: `reference.narrow_sum` says what they compute.
//
// To be compiled as arithmetic.cu is, and for the same reasons. In a sum that is narrowed, `begin`
// comes first, then what adds the inputs, then `most`, then `end`.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define EACH(i, n)                                                                          \
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < (n);                       \
         i += (u64)gridDim.x * blockDim.x)

#define BF16 0  // formats, by their numbers in `reference.FORMATS`; int8 is the other one
#define FP16 1
#define BLOCK 1024  // `reference.NARROWED_BLOCK`

#define INFINITE 0x7F800000u
#define A_NAN 0x7FC00000u
#define TINY (27u << 23)  // 2**-100: a block of nothing but smaller numbers has no scale

// What element i says. There is one NaN: hardware has opinions about others.
__device__ inline float widened(u32 form, const u8* body, const float* marks, u64 i) {
    if (form == BF16) return __uint_as_float((u32)((const u16*)body)[i] << 16);
    float scale = marks[i / BLOCK], value;
    if (form == FP16) {
        // As if it were a float32 of that exponent, which is too small by a factor.
        u32 half = ((const u16*)body)[i], size = (half & 0x7FFFu) << 13;
        if (size >= 0x0F800000u) size |= INFINITE;
        value = __uint_as_float((half & 0x8000u) << 16 | size) * 0x1p112f * scale;
    } else {
        value = (float)(signed char)body[i] * scale;
    }
    return value == value ? value : __uint_as_float(A_NAN);
}

__device__ inline u16 to_bf16(float x) {
    u32 bits = __float_as_uint(x), size = bits & 0x7FFFFFFFu;
    if (size > INFINITE) return 0x7FC0u;
    if (size == INFINITE) return (u16)(bits >> 16);
    u32 rounded = (bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16;
    return (u16)((rounded & 0x7FFFu) == 0x7F80u ? rounded - 1 : rounded);
}

// The power of two by which a block is divided, from the bits of its largest finite magnitude.
__device__ inline u32 power_of(u32 most) { return most >= TINY ? (most >> 23) - 14 : 127; }

__device__ inline u16 to_fp16(float x, u32 most) {
    u32 power = power_of(most);
    float t = x * __uint_as_float((254 - power) << 23);
    u32 bits = __float_as_uint(t), size = bits & 0x7FFFFFFFu, sign = bits >> 16 & 0x8000u;
    if (size > INFINITE) return 0x7E00u;
    if (size == INFINITE) return (u16)(sign | 0x7C00u);
    u32 half = (size + 0xC8000FFFu + (size >> 13 & 1u)) >> 13;
    if (size < 0x38800000u) {
        // What is too small for a mantissa of full length is rounded by this addition.
        half = __float_as_uint(__uint_as_float(size) + 0.5f) - 0x3F000000u;
    }
    // What follows 0x77FF in a block of the largest numbers would stand for no finite float32.
    u32 limit = power == 254 - 14 ? 0x77FFu : 0x7BFFu;
    return (u16)(sign | (half < limit ? half : limit));
}

__device__ inline float int8_scale(u32 most) {
    if (most >= INFINITE) return __uint_as_float(A_NAN);
    if (most < TINY) return 0.0f;
    float largest = __uint_as_float(most), scale = largest / 127.0f;
    return 127.0f * scale > largest ? __uint_as_float(__float_as_uint(scale) - 1) : scale;
}

__device__ inline u8 to_int8(float x, u32 most) {
    if (most >= INFINITE || most < TINY) return 0;
    float times = 127.0f / __uint_as_float(most);
    // Adding this leaves no place for digits behind the point.
    float rounded = (x * times + 12582912.0f) - 12582912.0f;
    return (u8)(signed char)rounded;
}

extern "C" __global__ void begin(
    float* total, const float* rest, const u8* came, const float* marks, u32 form, u64 n) {
    EACH(i, n) total[i] = came ? widened(form, came, marks, i) + rest[i] : rest[i];
}

// The bits of each block's largest magnitude; in fp16, of its largest finite one.
extern "C" __global__ void most(
    u32* found, float* following, const float* total, u32 form, u64 n) {
    EACH(i, n) {
        float x = total[i];
        following[i] = x;
        u32 size = __float_as_uint(x) & 0x7FFFFFFFu;
        if (form == FP16 && size >= INFINITE) size = 0;
        atomicMax(&found[i / BLOCK], size);
    }
}

extern "C" __global__ void end(
    u8* body, float* marks, float* total, float* following, const u32* found, u32 form, u64 n) {
    EACH(i, n) {
        u32 most = form == BF16 ? 0 : found[i / BLOCK];
        float mark = 0.0f, says, x = total[i];
        if (form == BF16) {
            u16 narrow = to_bf16(x);
            ((u16*)body)[i] = narrow;
            says = widened(form, (const u8*)&narrow, &mark, 0);
        } else if (form == FP16) {
            u16 narrow = to_fp16(x, most);
            mark = __uint_as_float(power_of(most) << 23);
            ((u16*)body)[i] = narrow;
            says = widened(form, (const u8*)&narrow, &mark, 0);
        } else {
            u8 narrow = to_int8(x, most);
            mark = int8_scale(most);
            body[i] = narrow;
            says = widened(form, &narrow, &mark, 0);
        }
        if (form != BF16 && i % BLOCK == 0) marks[i / BLOCK] = mark;
        total[i] = says;
        float lacks = following[i] - says;
        following[i] = lacks - lacks == 0.0f ? lacks : 0.0f;
    }
}

extern "C" __global__ void widen(
    float* out, const u8* body, const float* marks, u32 form, u64 n) {
    EACH(i, n) out[i] = widened(form, body, marks, i);
}
