// The hand-written part of the shim: how a call is forwarded, and the calls that the table cannot describe.
//
// Both MPI_X and PMPI_X are ours: Fortran layers call the one or the other. What MPI itself calls through these names while we
// are in a call of the program (ROMIO does) is forwarded and nothing else: `depth`.
#include <dlfcn.h>
#include <execinfo.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/times.h>
#include <time.h>
#include <unistd.h>

#define EXPORTED __attribute__((visibility("default")))

static int mode = MODE_UNSTARTED;
static __thread int depth;
static pthread_once_t once = PTHREAD_ONCE_INIT;

// For a debugger: break here; set mainstay_mpi_step to stop at the end of every call.
EXPORTED int mainstay_mpi_step;
EXPORTED const char *volatile mainstay_mpi_why;
EXPORTED __attribute__((noinline)) void mainstay_mpi_stop(void) { __asm__ volatile("" ::: "memory"); }

static void stop(const char *why)
{
    mainstay_mpi_why = why;
    mainstay_mpi_stop();
    if (getenv("MAINSTAY_MPI_DEBUGGER"))
        return;
    void *frames[64];
    int count = backtrace(frames, 64);
    // The first frames are the core's.
    fflush(stderr);
    backtrace_symbols_fd(frames, count, 2);
}

// A fork's child: the log, the verdict and what threads of its parent held are not its own.
static int child;
static void forked(void) { child = 1; mode = MODE_OFF; ms_forget_all(); }

// The binary interface that this is compiled for. `src/operation.rs` knows the beginning of the standard one's name.
#define STANDARD_ABI ""
#if defined(OPEN_MPI)
#define ABI "Open MPI"
#elif defined(MPI_ABI_VERSION) && !defined(MPICH_NAME)
#define ABI "the MPI standard's ABI"
#undef STANDARD_ABI
#define STANDARD_ABI "MPI standard ABI; "
#else
#define ABI "MPICH"
#endif

static const char *abi_of_library(const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    if (strncmp(name, "libmpi_abi.so", 13) == 0)
        return "the MPI standard's ABI";
    if (strncmp(name, "libmpich.so", 11) == 0 || strncmp(name, "libmpi.so.12", 12) == 0)
        return "MPICH";
    return strncmp(name, "libmpi.so.", 10) == 0 ? "Open MPI" : NULL;
}

// A program that loads its MPI late (Python does) may load another than its launcher and command line say. Its handles have other
// sizes than ours, so that not even handing its calls on would do.
static int refuse_another_abi(struct dl_phdr_info *library, size_t size, void *unused)
{
    (void)size, (void)unused;
    const char *abi = abi_of_library(library->dlpi_name);
    if (!abi || strcmp(abi, ABI) == 0)
        return 0;
    fprintf(stderr,
        "mainstay: this process has loaded %s, which has the binary interface of %s, and what was preloaded to record it that of %s. "
        "Nothing is recorded and the process ends here. --mpicc names the compiler wrapper of the library that is meant.\n",
        library->dlpi_name, abi, ABI);
    _exit(1);
}

static void end_early(void);
static void forget_early(void);
static void watch_exit(void);

static void begin(void)
{
    dl_iterate_phdr(refuse_another_abi, NULL);
    for (size_t i = 0; i < sizeof reals / sizeof *reals; i++)
        *reals[i].real = dlsym(RTLD_NEXT, reals[i].name);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        ms_name(names[i]);
#define REGISTER(kind, index, object) ms_predefined(kind, index, HANDLE(object))
    EACH_PREDEFINED(REGISTER);
#undef REGISTER
    end_early();
    mode = ms_begin(sizeof(MPI_Comm) == sizeof(void *), stop);
    forget_early();
    if (mode == MODE_OFF)
        return;
    pthread_atfork(NULL, NULL, forked);
    watch_exit();
}

static void start(void) { pthread_once(&once, begin); }

static int forwarded(void)
{
    if (__builtin_expect(mode == MODE_UNSTARTED, 0))
        start();
    return mode == MODE_OFF || depth > 0;
}

static int live(void) { return mode != MODE_REPLAY; }

// Between these two the core may read clocks of its own.
static __thread int in_call, current;

static void open_call(int function)
{
    in_call = 1;
    current = function;
    ms_open(function);
}

static void close_call(void)
{
    int next = ms_close();
    if (mode != MODE_OFF)
        mode = next;
    in_call = 0;
    if (__builtin_expect(mainstay_mpi_step, 0)) {
        static char why[80];
        snprintf(why, sizeof why, "call %llu, %s", (unsigned long long)ms_calls(), names[current]);
        mainstay_mpi_why = why;
        mainstay_mpi_stop();
    }
}

// ---- communicators

static void describe_comm(MPI_Comm comm)
{
    if (mode != MODE_RECORD || comm == MPI_COMM_NULL)
        return;
    depth++;
    int rank = -1, size = 0, remote = 0, inter = 0;
    real_Comm_test_inter(comm, &inter);
    real_Comm_rank(comm, &rank);
    real_Comm_size(comm, &size);
    MPI_Group group = MPI_GROUP_NULL, others = MPI_GROUP_NULL, world = MPI_GROUP_NULL;
    real_Comm_group(comm, &group);
    if (inter) {
        real_Comm_remote_size(comm, &remote);
        real_Comm_remote_group(comm, &others);
    }
    real_Comm_group(MPI_COMM_WORLD, &world);
    int count = size, other_count = remote, most = size > remote ? size : remote;
    int *from = malloc(3 * sizeof(int) * (size_t)(most + 1)), *ranks = from + most, *other_ranks = ranks + most;
    for (int i = 0; i < most; i++)
        from[i] = i;
    if (real_Group_translate_ranks(group, count, from, world, ranks) != MPI_SUCCESS)
        count = 0;
    if (inter && real_Group_translate_ranks(others, other_count, from, world, other_ranks) != MPI_SUCCESS)
        other_count = 0;
    if (inter)
        ms_comm(HANDLE(comm), rank, size, remote, other_ranks, (uint64_t)other_count, ranks, (uint64_t)count);
    else
        ms_comm(HANDLE(comm), rank, size, remote, ranks, (uint64_t)count, NULL, 0);
    free(from);
    real_Group_free(&group);
    if (inter)
        real_Group_free(&others);
    real_Group_free(&world);
    depth--;
}

static int comm_is(MPI_Comm comm, int what)
{
    int value = ms_comm_is(HANDLE(comm), what);
    if (value < 0 && live()) {
        describe_comm(comm);
        value = ms_comm_is(HANDLE(comm), what);
    }
    return value;
}

static int comm_size(MPI_Comm comm)
{
    int remote = comm_is(comm, 2);
    return remote > 0 ? remote : comm_is(comm, 1);
}

static int is_root(MPI_Comm comm, int root)
{
    return comm_is(comm, 2) > 0 ? root == MPI_ROOT : root == comm_is(comm, 0);
}

#define SIZE comm_size(comm)
#define RANK comm_is(comm, 0)
#define ROOT is_root(comm, root)

// ---- message data

static void in_data(const void *buf, int64_t count, MPI_Datatype type)
{
    if (buf != MPI_IN_PLACE)
        ms_in_data(buf, count, HANDLE(type));
}

// What a send takes. `overwritten`: by what is received in the same call.
static void in_sent(const void *buf, int64_t count, MPI_Datatype type, int overwritten)
{
    if (buf != MPI_IN_PLACE)
        ms_in_sent(buf, count, HANDLE(type), overwritten);
}

static void out_data(void *buf, int64_t count, MPI_Datatype type, uint64_t limit)
{
    if (buf != MPI_IN_PLACE)
        ms_out_data(buf, count, HANDLE(type), limit);
}

static void out_message(void *buf, int64_t count, MPI_Datatype type, uint64_t limit)
{
    if (buf != MPI_IN_PLACE)
        ms_out_message(buf, count, HANDLE(type), limit);
}

static void region(void *buf, int64_t count, MPI_Datatype type)
{
    if (buf != MPI_IN_PLACE)
        ms_region(buf, count, HANDLE(type));
}

// A call with large counts (`_c`) has arrays of `MPI_Count` where the other has arrays of `int`: `counts.c` is compiled for both.
#define OUT_WHOLE(buf, count, type) ms_out_data(buf, count, HANDLE(type), UINT64_MAX)
#define IN_WHOLE(buf, count, type) ms_in_data(buf, count, HANDLE(type))
#define REGION(buf, count, type) ms_region(buf, count, HANDLE(type))
#define BY_COUNT(NAME, counts) _Generic(*(counts), int: NAME##_of, default: NAME##_of_c)
#define sum(counts, size) BY_COUNT(sum, counts)(counts, size)
#define in_data_v(buf, counts, ...) BY_COUNT(in_data_v, counts)(buf, counts, __VA_ARGS__)
#define in_data_w(buf, counts, ...) BY_COUNT(in_data_w, counts)(buf, counts, __VA_ARGS__)
#define out_data_v(buf, counts, ...) BY_COUNT(out_data_v, counts)(buf, counts, __VA_ARGS__)
#define out_data_w(buf, counts, ...) BY_COUNT(out_data_w, counts)(buf, counts, __VA_ARGS__)
#define region_v(buf, counts, ...) BY_COUNT(region_v, counts)(buf, counts, __VA_ARGS__)
#define region_w(buf, counts, ...) BY_COUNT(region_w, counts)(buf, counts, __VA_ARGS__)

#define REAL(call) do { if (live()) { ms_leave(); depth++; result = call; depth--; } result = (int)ms_result(result); } while (0)
// Of a call that may wait for other ranks.
#define WAIT(call) do { if (live()) { ms_wait(); ms_leave(); depth++; result = call; depth--; } result = (int)ms_result(result); } while (0)
#define OUT(pointer) ms_out(pointer, sizeof *(pointer))
