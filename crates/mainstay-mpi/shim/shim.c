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

// For a debugger: break here; set mainstay_mpi_step to stop at the beginning of every call.
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
    if (mode != MODE_OFF)
        pthread_atfork(NULL, NULL, forked);
}

static void start(void) { pthread_once(&once, begin); }

static __attribute__((destructor)) void finish(void)
{
    // A fork's child and a process that called nothing have no log.
    if (mode == MODE_UNSTARTED || child)
        return;
    depth++;
    ms_finish();
    mode = MODE_OFF;
}

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
        mainstay_mpi_why = names[current];
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

// ---- statuses and requests

// Where this mpi.h has the bytes of a message in a status, and whether its request was cancelled: a look costs nothing, the calls
// that tell cost more than the rest of a small message's record. Believed only if MPI itself puts them there.
#if defined OPEN_MPI
#define STATUS_BYTES(status) ((uint64_t)(status)->_ucount)
#define STATUS_CANCELLED(status) ((status)->_cancelled != 0)
#elif defined MPICH_NUMVERSION && MPICH_NUMVERSION >= 30100000
#define STATUS_BYTES(status)                                                                                   \
    (((uint64_t)((unsigned)(status)->count_hi_and_cancelled >> 1) << 32) + (unsigned)(status)->count_lo)
#define STATUS_CANCELLED(status) (((status)->count_hi_and_cancelled & 1) != 0)
#else
#define STATUS_BYTES(status) ((void)(status), (uint64_t)0)
#define STATUS_CANCELLED(status) ((void)(status), 0)
#endif

static int status_is_known;

static void look_into_status(void)
{
    MPI_Status status;
    const uint64_t bytes = 5000000007;
    memset(&status, 0, sizeof status);
    status_is_known = real_Status_set_elements_x(&status, MPI_BYTE, (MPI_Count)bytes) == MPI_SUCCESS
        && real_Status_set_cancelled(&status, 0) == MPI_SUCCESS && STATUS_BYTES(&status) == bytes
        && !STATUS_CANCELLED(&status) && real_Status_set_cancelled(&status, 1) == MPI_SUCCESS
        && STATUS_CANCELLED(&status);
}

static uint64_t message_bytes(MPI_Status *status)
{
    if (status_is_known)
        return STATUS_BYTES(status);
    // An int ends at 2 GiB.
    MPI_Count bytes = 0;
    depth++;
    if (real_Get_elements_x(status, MPI_BYTE, &bytes) != MPI_SUCCESS)
        bytes = 0;
    depth--;
    return bytes > 0 ? (uint64_t)bytes : 0;
}

static int is_cancelled(MPI_Status *status)
{
    if (status_is_known)
        return STATUS_CANCELLED(status);
    int cancelled = 0;
    depth++;
    real_Test_cancelled(status, &cancelled);
    depth--;
    return cancelled;
}

// Of a request, which may have been cancelled.
static uint64_t out_status(MPI_Status *status)
{
    int cancelled = live() && is_cancelled(status);
    uint64_t bytes = live() && !cancelled ? message_bytes(status) : 0;
    return ms_status(status, sizeof *status, cancelled ? INT32_MIN : status->MPI_SOURCE, status->MPI_TAG, bytes);
}

// Of a message that came or was found. MPICH leaves it to chance whether the status of a matched probe says that it was cancelled.
static uint64_t out_message_status(MPI_Status *status)
{
    uint64_t bytes = live() ? message_bytes(status) : 0;
    return ms_status(status, sizeof *status, status->MPI_SOURCE, status->MPI_TAG, bytes);
}

// Whether a request is done already.
static int is_over(MPI_Request request)
{
    int flag = 0;
    MPI_Status status;
    depth++;
    if (real_Request_get_status(request, &flag, &status) != MPI_SUCCESS)
        flag = 0;
    depth--;
    return flag;
}

// A request comes out. `alone`: of a collective of one rank, which Open MPI is done with at once. It has one handle for all such,
// by which the memory they filled could not be told apart later.
static void out_request(MPI_Request *request, int what, int alone)
{
    int null = live() ? *request == MPI_REQUEST_NULL : 0;
    if (alone && live() && !null && is_over(*request))
        what = OVER;
    uint64_t handle = ms_request(live() ? HANDLE(*request) : 0, &null, what);
    if (!live())
        *request = null ? MPI_REQUEST_NULL : (MPI_Request)(intptr_t)handle;
}

// A request failed, or is still on its way.
static void failed(MPI_Request before, MPI_Request *after)
{
    int gone = live() ? *after == MPI_REQUEST_NULL : 0;
    ms_out(&gone, sizeof gone);
    if (gone) {
        ms_forget(HANDLE(before));
        *after = MPI_REQUEST_NULL;
    }
}

// A request that was on its way is done, at place `index` of the call's array. `result`: of the call.
static void done(int index, MPI_Request before, MPI_Request *after, MPI_Status *status, int result)
{
    uint64_t bytes = out_status(status);
    if (result == MPI_ERR_IN_STATUS && status->MPI_ERROR != MPI_SUCCESS) {
        failed(before, after);
        return;
    }
    int null = live() ? *after == MPI_REQUEST_NULL : 0;
    null = ms_done((uint64_t)index, HANDLE(before), null, bytes);
    if (!live() && null)
        *after = MPI_REQUEST_NULL;
}

// The program's requests as they were, and room for their statuses.
struct waited {
    MPI_Request few[16], *before;
    MPI_Status own[16], *made, *seen;
};

static void remember(struct waited *waited, int count, const MPI_Request requests[], MPI_Status *statuses)
{
    size_t room = count > 0 ? (size_t)count : 0;
    waited->before = room > 16 ? malloc(room * sizeof *waited->before) : waited->few;
    memcpy(waited->before, requests, room * sizeof *waited->before);
    waited->made = NULL;
    if (statuses != MPI_STATUSES_IGNORE) {
        waited->seen = statuses;
    } else if (room > 16) {
        waited->seen = waited->made = calloc(room, sizeof *waited->seen);
    } else {
        memset(waited->own, 0, sizeof waited->own);
        waited->seen = waited->own;
    }
}

static void forget(struct waited *waited)
{
    if (waited->before != waited->few)
        free(waited->before);
    free(waited->made);
}

// Whether a call failed because a message was longer than the room for it.
static __attribute__((unused)) int is_truncated(int result)
{
    int class = MPI_SUCCESS;
    depth++;
    real_Error_class(result, &class);
    depth--;
    return class == MPI_ERR_TRUNCATE;
}

#define REAL(call) do { if (live()) { ms_leave(); depth++; result = call; depth--; } result = (int)ms_result(result); } while (0)
// Of a call that may wait for other ranks.
#define WAIT(call) do { if (live()) { ms_wait(); ms_leave(); depth++; result = call; depth--; } result = (int)ms_result(result); } while (0)
#define OUT(pointer) ms_out(pointer, sizeof *(pointer))

static void await(int count, const MPI_Request requests[])
{
    for (int i = 0; live() && i < count; i++)
        if (requests[i] != MPI_REQUEST_NULL)
            ms_await(HANDLE(requests[i]));
}

EXPORTED int MPI_Wait(MPI_Request *request, MPI_Status *status)
{
    if (forwarded())
        return real_Wait(request, status);
    open_call(FN_Wait);
    MPI_Status own = {0}, *seen = status == MPI_STATUS_IGNORE ? &own : status;
    MPI_Request before = *request;
    int result = MPI_SUCCESS;
    await(1, request);
    WAIT(real_Wait(request, seen));
    if (result == MPI_SUCCESS) {
        if (before != MPI_REQUEST_NULL)
            done(0, before, request, seen, result);
        else
            out_status(seen);
    } else if (before != MPI_REQUEST_NULL) {
        failed(before, request);
    }
    close_call();
    return result;
}

EXPORTED int MPI_Waitall(int count, MPI_Request requests[], MPI_Status statuses[])
{
    if (forwarded())
        return real_Waitall(count, requests, statuses);
    open_call(FN_Waitall);
    ms_in(COUNT, count);
    struct waited waited;
    remember(&waited, count, requests, statuses);
    int result = MPI_SUCCESS;
    await(count, requests);
    WAIT(real_Waitall(count, requests, waited.seen));
    if (result == MPI_SUCCESS || result == MPI_ERR_IN_STATUS)
        for (int i = 0; i < count; i++) {
            if (waited.before[i] != MPI_REQUEST_NULL)
                done(i, waited.before[i], &requests[i], &waited.seen[i], result);
            else
                out_status(&waited.seen[i]);
        }
    close_call();
    forget(&waited);
    return result;
}

EXPORTED int MPI_Waitany(int count, MPI_Request requests[], int *index, MPI_Status *status)
{
    if (forwarded())
        return real_Waitany(count, requests, index, status);
    open_call(FN_Waitany);
    ms_in(COUNT, count);
    struct waited waited;
    remember(&waited, count, requests, MPI_STATUSES_IGNORE);
    MPI_Status *seen = status == MPI_STATUS_IGNORE ? &waited.own[0] : status;
    int result = MPI_SUCCESS;
    await(count, requests);
    WAIT(real_Waitany(count, requests, index, seen));
    if (result == MPI_SUCCESS) {
        OUT(index);
        if (*index != MPI_UNDEFINED)
            done(*index, waited.before[*index], &requests[*index], seen, result);
        else
            out_status(seen);
    }
    close_call();
    forget(&waited);
    return result;
}

// Waitsome and Testsome.
static void some(struct waited *waited, MPI_Request requests[], int *outcount, int indices[], int result)
{
    OUT(outcount);
    if (*outcount == MPI_UNDEFINED)
        return;
    ms_out(indices, sizeof *indices * (uint64_t)*outcount);
    for (int i = 0; i < *outcount; i++)
        done(indices[i], waited->before[indices[i]], &requests[indices[i]], &waited->seen[i], result);
}

EXPORTED int MPI_Waitsome(int count, MPI_Request requests[], int *outcount, int indices[], MPI_Status statuses[])
{
    if (forwarded())
        return real_Waitsome(count, requests, outcount, indices, statuses);
    open_call(FN_Waitsome);
    ms_in(COUNT, count);
    struct waited waited;
    remember(&waited, count, requests, statuses);
    int result = MPI_SUCCESS;
    await(count, requests);
    WAIT(real_Waitsome(count, requests, outcount, indices, waited.seen));
    if (result == MPI_SUCCESS || result == MPI_ERR_IN_STATUS)
        some(&waited, requests, outcount, indices, result);
    close_call();
    forget(&waited);
    return result;
}

EXPORTED int MPI_Testsome(int count, MPI_Request requests[], int *outcount, int indices[], MPI_Status statuses[])
{
    if (forwarded())
        return real_Testsome(count, requests, outcount, indices, statuses);
    open_call(FN_Testsome);
    ms_in(COUNT, count);
    struct waited waited;
    remember(&waited, count, requests, statuses);
    int result = MPI_SUCCESS;
    await(count, requests);
    WAIT(real_Testsome(count, requests, outcount, indices, waited.seen));
    if (result == MPI_SUCCESS || result == MPI_ERR_IN_STATUS) {
        some(&waited, requests, outcount, indices, result);
        if (*outcount == 0)
            ms_miss();
    }
    close_call();
    forget(&waited);
    return result;
}

EXPORTED int MPI_Test(MPI_Request *request, int *flag, MPI_Status *status)
{
    if (forwarded())
        return real_Test(request, flag, status);
    open_call(FN_Test);
    MPI_Status own = {0}, *seen = status == MPI_STATUS_IGNORE ? &own : status;
    MPI_Request before = *request;
    int result = MPI_SUCCESS;
    await(1, request);
    WAIT(real_Test(request, flag, seen));
    if (result == MPI_SUCCESS) {
        OUT(flag);
        if (!*flag)
            ms_miss();
        else if (before != MPI_REQUEST_NULL)
            done(0, before, request, seen, result);
        else
            out_status(seen);
    } else if (before != MPI_REQUEST_NULL) {
        failed(before, request);
    }
    close_call();
    return result;
}

EXPORTED int MPI_Testall(int count, MPI_Request requests[], int *flag, MPI_Status statuses[])
{
    if (forwarded())
        return real_Testall(count, requests, flag, statuses);
    open_call(FN_Testall);
    ms_in(COUNT, count);
    struct waited waited;
    remember(&waited, count, requests, statuses);
    int result = MPI_SUCCESS;
    await(count, requests);
    WAIT(real_Testall(count, requests, flag, waited.seen));
    if (result == MPI_SUCCESS) {
        OUT(flag);
        if (!*flag)
            ms_miss();
        for (int i = 0; *flag && i < count; i++) {
            if (waited.before[i] != MPI_REQUEST_NULL)
                done(i, waited.before[i], &requests[i], &waited.seen[i], result);
            else
                out_status(&waited.seen[i]);
        }
    }
    close_call();
    forget(&waited);
    return result;
}

EXPORTED int MPI_Testany(int count, MPI_Request requests[], int *index, int *flag, MPI_Status *status)
{
    if (forwarded())
        return real_Testany(count, requests, index, flag, status);
    open_call(FN_Testany);
    ms_in(COUNT, count);
    struct waited waited;
    remember(&waited, count, requests, MPI_STATUSES_IGNORE);
    MPI_Status *seen = status == MPI_STATUS_IGNORE ? &waited.own[0] : status;
    int result = MPI_SUCCESS;
    await(count, requests);
    WAIT(real_Testany(count, requests, index, flag, seen));
    if (result == MPI_SUCCESS) {
        OUT(flag);
        OUT(index);
        if (!*flag)
            ms_miss();
        else if (*index != MPI_UNDEFINED)
            done(*index, waited.before[*index], &requests[*index], seen, result);
        else
            out_status(seen);
    }
    close_call();
    forget(&waited);
    return result;
}

EXPORTED int MPI_Request_get_status(MPI_Request request, int *flag, MPI_Status *status)
{
    if (forwarded())
        return real_Request_get_status(request, flag, status);
    open_call(FN_Request_get_status);
    MPI_Status own = {0}, *seen = status == MPI_STATUS_IGNORE ? &own : status;
    int result = MPI_SUCCESS;
    REAL(real_Request_get_status(request, flag, seen));
    if (result == MPI_SUCCESS) {
        OUT(flag);
        // The program may read from now on what the request filled; the call that ends the request will find it filled.
        MPI_Request after = request;
        if (!*flag)
            ms_miss();
        else if (request != MPI_REQUEST_NULL)
            done(0, request, &after, seen, result);
        else
            out_status(seen);
    }
    close_call();
    return result;
}

EXPORTED int MPI_Request_free(MPI_Request *request)
{
    if (forwarded())
        return real_Request_free(request);
    open_call(FN_Request_free);
    ms_in_request(HANDLE(*request));
    ms_forget(HANDLE(*request));
    int result = MPI_SUCCESS;
    REAL(real_Request_free(request));
    if (!live() && result == MPI_SUCCESS)
        *request = MPI_REQUEST_NULL;
    close_call();
    return result;
}

EXPORTED int MPI_Cancel(MPI_Request *request)
{
    if (forwarded())
        return real_Cancel(request);
    open_call(FN_Cancel);
    ms_in_request(HANDLE(*request));
    int result = MPI_SUCCESS;
    REAL(real_Cancel(request));
    close_call();
    return result;
}

EXPORTED int MPI_Start(MPI_Request *request)
{
    if (forwarded())
        return real_Start(request);
    open_call(FN_Start);
    ms_start(HANDLE(*request));
    int result = MPI_SUCCESS;
    REAL(real_Start(request));
    close_call();
    return result;
}

EXPORTED int MPI_Startall(int count, MPI_Request requests[])
{
    if (forwarded())
        return real_Startall(count, requests);
    open_call(FN_Startall);
    ms_in(COUNT, count);
    for (int i = 0; i < count; i++)
        ms_start(HANDLE(requests[i]));
    int result = MPI_SUCCESS;
    REAL(real_Startall(count, requests));
    close_call();
    return result;
}

// ---- datatypes: `counts.c` has most

static void made_type(int result, MPI_Datatype *type, int plain_bytes)
{
    MPI_Aint lb = 0, extent = 0;
    if (result != MPI_SUCCESS)
        return;
    if (live()) {
        depth++;
        real_Type_get_extent(*type, &lb, &extent);
        depth--;
    }
    depth++;
    ms_type(HANDLE(*type), extent, plain_bytes);
    depth--;
}

#define NEW_TYPE(call)                                                                                         \
    int result = MPI_SUCCESS;                                                                                  \
    REAL(call);                                                                                                \
    if (result == MPI_SUCCESS)                                                                                 \
        *newtype = (MPI_Datatype)(intptr_t)ms_out_handle(DATATYPE, HANDLE(*newtype));                           \
    close_call();                                                                                              \
    made_type(result, newtype, 0);                                                                             \
    return result

static void vector(int64_t count, int64_t blocklength, int64_t stride, MPI_Datatype oldtype)
{
    ms_in(COUNT, count);
    ms_in(NUMBER, blocklength);
    ms_in(NUMBER, stride);
    ms_in_handle(DATATYPE, HANDLE(oldtype));
    for (int64_t i = 0; i < count; i++)
        ms_piece(HANDLE(oldtype), (uint64_t)blocklength, i * stride);
}

// Gives out a predefined type, of which our list may not have all: of so many bytes, without holes.
EXPORTED int MPI_Type_match_size(int typeclass, int size, MPI_Datatype *newtype)
{
    if (forwarded())
        return real_Type_match_size(typeclass, size, newtype);
    open_call(FN_Type_match_size);
    ms_in(NUMBER, typeclass);
    ms_in(NUMBER, size);
    int result = MPI_SUCCESS;
    REAL(real_Type_match_size(typeclass, size, newtype));
    if (result == MPI_SUCCESS)
        *newtype = (MPI_Datatype)(intptr_t)ms_out_handle(DATATYPE, HANDLE(*newtype));
    close_call();
    if (result == MPI_SUCCESS && ms_extent(HANDLE(*newtype)) == 0)
        made_type(result, newtype, size);
    return result;
}

EXPORTED int MPI_Type_dup(MPI_Datatype oldtype, MPI_Datatype *newtype)
{
    if (forwarded())
        return real_Type_dup(oldtype, newtype);
    open_call(FN_Type_dup);
    ms_in_handle(DATATYPE, HANDLE(oldtype));
    ms_piece(HANDLE(oldtype), 1, 0);
    NEW_TYPE(real_Type_dup(oldtype, newtype));
}

// MPI_Address and MPI_Get_address are arithmetic; what they give is another number in each run.
EXPORTED int MPI_Get_address(const void *location, MPI_Aint *address)
{
    *address = (MPI_Aint)location;
    return MPI_SUCCESS;
}
#ifdef HAS_Address
EXPORTED int MPI_Address(void *location, MPI_Aint *address)
{
    *address = (MPI_Aint)location;
    return MPI_SUCCESS;
}
#endif
#ifdef HAS_Aint_add
#undef MPI_Aint_add
#undef MPI_Aint_diff
EXPORTED MPI_Aint MPI_Aint_add(MPI_Aint base, MPI_Aint disp) { return base + disp; }
EXPORTED MPI_Aint MPI_Aint_diff(MPI_Aint one, MPI_Aint other) { return one - other; }
#endif

// ---- beginning and end

static void describe_world(void)
{
    if (mode != MODE_RECORD)
        return;
    depth++;
    MPI_Errhandler world = MPI_ERRHANDLER_NULL, self = MPI_ERRHANDLER_NULL;
    real_Comm_get_errhandler(MPI_COMM_WORLD, &world);
    real_Comm_get_errhandler(MPI_COMM_SELF, &self);
    real_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    real_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
#define SIZE_OF(kind, index, object)                                                                           \
    if (kind == DATATYPE && HANDLE(object) != HANDLE(MPI_DATATYPE_NULL)) {                                      \
        MPI_Datatype type = (MPI_Datatype)(intptr_t)HANDLE(object);                                            \
        int bytes = 0;                                                                                         \
        MPI_Aint lb = 0, extent = 0;                                                                           \
        if (type != MPI_SHORT_INT && type != MPI_LONG_DOUBLE_INT                                               \
            && real_Type_size(type, &bytes) == MPI_SUCCESS                                                     \
            && real_Type_get_extent(type, &lb, &extent) == MPI_SUCCESS)                                        \
            ms_type(HANDLE(type), extent, bytes);                                                              \
    }
    EACH_PREDEFINED(SIZE_OF);
#undef SIZE_OF
    // The two predefined pairs with a hole.
    ms_piece(HANDLE(MPI_SHORT), 1, 0);
    ms_piece(HANDLE(MPI_INT), 1, 4);
    ms_type(HANDLE(MPI_SHORT_INT), 8, 0);
    ms_piece(HANDLE(MPI_LONG_DOUBLE), 1, 0);
    ms_piece(HANDLE(MPI_INT), 1, sizeof(long double));
    ms_type(HANDLE(MPI_LONG_DOUBLE_INT), 2 * sizeof(long double), 0);
#ifdef OPEN_MPI
#define FORTRAN_OF(kind, index, object)                                                                        \
    if (kind == COMM) ms_fortran(kind, HANDLE(object), real_Comm_c2f((MPI_Comm)(void *)object));               \
    if (kind == DATATYPE) ms_fortran(kind, HANDLE(object), real_Type_c2f((MPI_Datatype)(void *)object));        \
    if (kind == GROUP) ms_fortran(kind, HANDLE(object), real_Group_c2f((MPI_Group)(void *)object));            \
    if (kind == OP) ms_fortran(kind, HANDLE(object), real_Op_c2f((MPI_Op)(void *)object));                     \
    if (kind == REQUEST) ms_fortran(kind, HANDLE(object), real_Request_c2f((MPI_Request)(void *)object));       \
    if (kind == INFO) ms_fortran(kind, HANDLE(object), real_Info_c2f((MPI_Info)(void *)object));               \
    if (kind == MESSAGE_KIND) ms_fortran(kind, HANDLE(object), real_Message_c2f((MPI_Message)(void *)object)); \
    if (kind == ERRHANDLER) ms_fortran(kind, HANDLE(object), real_Errhandler_c2f((MPI_Errhandler)(void *)object));
    EACH_PREDEFINED(FORTRAN_OF);
#undef FORTRAN_OF
    ms_fortran_end();
#endif
    describe_comm(MPI_COMM_WORLD);
    describe_comm(MPI_COMM_SELF);
    look_into_status();
    char library[sizeof STANDARD_ABI + MPI_MAX_LIBRARY_VERSION_STRING] = STANDARD_ABI;
    int rank = 0, size = 0, length = 0;
    real_Comm_rank(MPI_COMM_WORLD, &rank);
    real_Comm_size(MPI_COMM_WORLD, &size);
    real_Get_library_version(library + strlen(library), &length);
    ms_rank(rank, size, library);
    real_Comm_set_errhandler(MPI_COMM_WORLD, world);
    real_Comm_set_errhandler(MPI_COMM_SELF, self);
    real_Errhandler_free(&world);
    real_Errhandler_free(&self);
    depth--;
}

// Set in the thread that is between MPI_Init and MPI_Finalize.
static __thread int ours;

EXPORTED int MPI_Init(int *argc, char ***argv)
{
    if (forwarded())
        return real_Init(argc, argv);
    open_call(FN_Init);
    int result = MPI_SUCCESS;
    WAIT(real_Init(argc, argv));
    close_call();
    if (result == MPI_SUCCESS)
        describe_world();
    ours = 1;
    return result;
}

EXPORTED int MPI_Init_thread(int *argc, char ***argv, int required, int *provided)
{
    if (forwarded())
        return real_Init_thread(argc, argv, required, provided);
    open_call(FN_Init_thread);
    ms_in(NUMBER, required);
    int result = MPI_SUCCESS;
    WAIT(real_Init_thread(argc, argv, required, provided));
    if (result == MPI_SUCCESS)
        OUT(provided);
    close_call();
    if (result == MPI_SUCCESS)
        describe_world();
    ours = 1;
    return result;
}

EXPORTED int MPI_Finalize(void)
{
    if (forwarded())
        return real_Finalize();
    ours = 0;
    open_call(FN_Finalize);
    int result = MPI_SUCCESS;
    WAIT(real_Finalize());
    close_call();
    return result;
}

EXPORTED int MPI_Abort(MPI_Comm comm, int code)
{
    if (forwarded())
        return real_Abort(comm, code);
    open_call(FN_Abort);
    ms_in(NUMBER, code);
    ms_result(MPI_SUCCESS);
    close_call();
    if (!live()) {
        fflush(NULL);
        exit(code);
    }
    // The core reads clocks, which are not the program's.
    depth++;
    ms_finish();
    depth--;
    mode = MODE_OFF;
    return real_Abort(comm, code);
}

EXPORTED int MPI_Pcontrol(const int level, ...)
{
    // Its other arguments cannot be forwarded, and no MPI here uses them.
    return level == level ? MPI_SUCCESS : MPI_ERR_ARG;
}
EXPORTED int PMPI_Pcontrol(const int level, ...) { return level == level ? MPI_SUCCESS : MPI_ERR_ARG; }

static double clock_call(int function, double (*real)(void))
{
    open_call(function);
    double value = 0;
    if (live())
        value = real();
    OUT(&value);
    close_call();
    return value;
}

EXPORTED double MPI_Wtime(void) { return forwarded() ? real_Wtime() : clock_call(FN_Wtime, real_Wtime); }
EXPORTED double MPI_Wtick(void) { return forwarded() ? real_Wtick() : clock_call(FN_Wtick, real_Wtick); }

// ---- clocks: what a program sends often hangs on them
//
// Only of the thread that called MPI_Init, and not of libraries at work below MPI. A replay that reads another clock, or one
// more, is served by the real one: a clock alone is no divergence.

// Clocks that were read before the first call of MPI, when there is no log yet: a C++ program takes the zero of its time so while it is
// loaded. They are kept as text in a variable of the environment, which the beginning of the log has with others that a replay is
// started with. Each reader (clock and library) has a row of its own, for how often a library reads one may hang on chance. A row
// that is longer than the limit is not kept at all: a replay of its beginning would mix two times. No memory is asked for before the
// program runs: UCX, which MPICH loads, reads a clock while it replaces the instructions of mmap.
#define EARLY_CLOCKS "MAINSTAY_MPI_EARLY_CLOCKS"
enum { EARLY_ROWS_MAX = 64, EARLY_READS_MAX = 64, EARLY_BYTES_MAX = 96 << 10 };
struct early_read {
    int64_t result;
    unsigned char bytes[sizeof(struct rusage)];
};
static struct early_row {
    int64_t function, which, reader;
    int reads, served;
    size_t length;
    struct early_read read[EARLY_READS_MAX + 1];
} early_rows[EARLY_ROWS_MAX];
static int early_used;
static enum { EARLY_UNKNOWN, EARLY_RECORD, EARLY_REPLAY, EARLY_OFF } early_mode;

static struct early_row *early_row(int64_t function, int64_t which, int64_t reader)
{
    for (int i = 0; i < early_used; i++)
        if (early_rows[i].function == function && early_rows[i].which == which && early_rows[i].reader == reader)
            return &early_rows[i];
    if (early_used == EARLY_ROWS_MAX)
        return NULL;
    struct early_row *row = &early_rows[early_used++];
    row->function = function;
    row->which = which;
    row->reader = reader;
    return row;
}

// `FUNCTION WHICH READER RESULT BYTES;` for each.
static void take_early(const char *text)
{
    while (*text) {
        char *at;
        int64_t function = strtoll(text, &at, 10), which = strtoll(at, &at, 10), reader = strtoll(at, &at, 10);
        struct early_read read = {.result = strtoll(at, &at, 10)};
        size_t length = 0;
        for (at += *at == ' '; at[0] && at[0] != ';' && at[1] && length < sizeof read.bytes; at += 2) {
            char digits[3] = {at[0], at[1], 0};
            read.bytes[length++] = (unsigned char)strtoul(digits, NULL, 16);
        }
        struct early_row *row = early_row(function, which, reader);
        if (*at != ';' || !row || row->reads == EARLY_READS_MAX)
            return;
        row->length = length;
        row->read[row->reads++] = read;
        text = at + 1;
    }
}

static int is_early(void)
{
    if (early_mode == EARLY_OFF || mode != MODE_UNSTARTED || syscall(SYS_gettid) != getpid())
        return 0;
    if (early_mode == EARLY_UNKNOWN) {
        const char *payload = getenv("MAINSTAY_MPI_PAYLOAD"), *text = getenv(EARLY_CLOCKS);
        early_mode = EARLY_OFF;
        int replay = getenv("MAINSTAY_MPI_REPLAY") != NULL;
        int record = !replay && getenv("MAINSTAY_MPI_RECORD") && !(payload && strcmp(payload, "none") == 0);
        if (record)
            early_mode = EARLY_RECORD;
        if (replay && text) {
            early_mode = EARLY_REPLAY;
            take_early(text);
        }
    }
    return early_mode != EARLY_OFF;
}

static struct early_row *early_row_of(int function, int64_t which, void *caller)
{
    Dl_info from;
    int64_t reader = 0;
    if (dladdr(caller, &from) && from.dli_fname) {
        const char *slash = strrchr(from.dli_fname, '/');
        for (const char *name = slash ? slash + 1 : from.dli_fname; *name; name++)
            reader = (reader * 31 + (unsigned char)*name) & INT32_MAX;
    }
    return early_row(function, which, reader);
}

static void keep_early(struct early_row *row, int64_t result, const void *bytes, size_t length)
{
    if (early_mode != EARLY_RECORD || !row || row->reads > EARLY_READS_MAX)
        return;
    struct early_read *read = &row->read[row->reads++];
    read->result = result;
    if (!bytes)
        return;
    // Of the row: a read that leaves the bytes out, as time(NULL) does, takes them from no other.
    row->length = length;
    memcpy(read->bytes, bytes, length);
}

// Whether that was read at the recording, too; it is served then.
static int serve_early(struct early_row *row, int64_t *result, void *bytes, size_t length)
{
    if (early_mode != EARLY_REPLAY || !row || row->served == row->reads)
        return 0;
    struct early_read *read = &row->read[row->served++];
    *result = read->result;
    if (bytes && row->length == length)
        memcpy(bytes, read->bytes, length);
    return 1;
}

// The log begins, or its replay.
static void end_early(void)
{
    char *text = early_mode == EARLY_RECORD ? malloc(EARLY_BYTES_MAX) : NULL, *at = text;
    for (int i = 0; text && i < early_used; i++) {
        struct early_row *row = &early_rows[i];
        size_t room = EARLY_BYTES_MAX - 1 - (size_t)(at - text);
        if (row->reads > EARLY_READS_MAX || (size_t)row->reads * (2 * row->length + 90) > room)
            continue;
        for (int k = 0; k < row->reads; k++) {
            at += sprintf(at, "%lld %lld %lld %lld ", (long long)row->function, (long long)row->which,
                (long long)row->reader, (long long)row->read[k].result);
            for (size_t j = 0; j < row->length; j++)
                at += sprintf(at, "%02x", row->read[k].bytes[j]);
            *at++ = ';';
        }
    }
    if (at > text) {
        *at = 0;
        setenv(EARLY_CLOCKS, text, 1);
    }
    free(text);
    early_mode = EARLY_OFF;
}

// The program and its children are not to see it.
static void forget_early(void) { unsetenv(EARLY_CLOCKS); }

#define CLOCK(NAME, RETURNS, PARAMETERS, ARGUMENTS, IN, POINTER)                                               \
    EXPORTED RETURNS NAME PARAMETERS                                                                           \
    {                                                                                                          \
        static RETURNS(*real) PARAMETERS;                                                                      \
        if (!real)                                                                                             \
            real = (RETURNS(*) PARAMETERS)dlsym(RTLD_NEXT, #NAME);                                             \
        if (is_early()) {                                                                                      \
            struct early_row *row = early_row_of(FN_##NAME, (int64_t)(IN), __builtin_return_address(0));         \
            int64_t seen;                                                                                      \
            if (serve_early(row, &seen, POINTER, sizeof *(POINTER)))                                           \
                return (RETURNS)seen;                                                                          \
            seen = (int64_t)real ARGUMENTS;                                                                    \
            keep_early(row, seen, POINTER, sizeof *(POINTER));                                                 \
            return (RETURNS)seen;                                                                              \
        }                                                                                                      \
        if (!ours || in_call || depth > 0 || (mode != MODE_RECORD && mode != MODE_REPLAY))                      \
            return real ARGUMENTS;                                                                             \
        if (!live() && !ms_next_is(FN_##NAME))                                                                 \
            return real ARGUMENTS;                                                                             \
        open_call(FN_##NAME);                                                                                  \
        ms_in(NUMBER, (int64_t)(IN));                                                                          \
        RETURNS result = 0;                                                                                    \
        if (live())                                                                                            \
            result = real ARGUMENTS;                                                                           \
        result = (RETURNS)ms_result((int64_t)result);                                                          \
        ms_out(POINTER, sizeof *(POINTER));                                                                    \
        close_call();                                                                                          \
        return result;                                                                                         \
    }

CLOCK(clock_gettime, int, (clockid_t id, struct timespec *now), (id, now), id, now)
CLOCK(gettimeofday, int, (struct timeval * restrict now, void *restrict zone), (now, zone), 0, now)
CLOCK(getrusage, int, (__rusage_who_t who, struct rusage *usage), (who, usage), who, usage)
CLOCK(time, time_t, (time_t * now), (now), 0, now)
CLOCK(clock, clock_t, (void), (), 0, (clock_t *)NULL)
CLOCK(times, clock_t, (struct tms * usage), (usage), 0, usage)

// ---- memory that MPI hands out or keeps

// By MPI_Buffer_attach.
static void *attached;

EXPORTED int MPI_Alloc_mem(MPI_Aint size, MPI_Info info, void *base)
{
    if (forwarded())
        return real_Alloc_mem(size, info, base);
    open_call(FN_Alloc_mem);
    ms_in(NUMBER, size);
    int result = MPI_SUCCESS;
    REAL(real_Alloc_mem(size, info, base));
    if (!live() && result == MPI_SUCCESS)
        *(void **)base = malloc(size > 0 ? (size_t)size : 1);
    close_call();
    return result;
}

EXPORTED int MPI_Free_mem(void *base)
{
    if (forwarded())
        return real_Free_mem(base);
    open_call(FN_Free_mem);
    int result = MPI_SUCCESS;
    REAL(real_Free_mem(base));
    if (!live())
        free(base);
    close_call();
    return result;
}

// ---- attributes: values are addresses of the program's, so replay keeps them itself

struct attribute {
    uint64_t comm;
    int keyval;
    void *value;
};
static struct attribute *attributes;
static int attributes_used, attributes_room;
static int predefined_values[64];

static struct attribute *attribute(MPI_Comm comm, int keyval)
{
    for (int i = 0; i < attributes_used; i++)
        if (attributes[i].comm == HANDLE(comm) && attributes[i].keyval == keyval)
            return &attributes[i];
    return NULL;
}

static void keep_attribute(MPI_Comm comm, int keyval, void *value)
{
    struct attribute *known = attribute(comm, keyval);
    if (!known) {
        if (attributes_used == attributes_room) {
            attributes_room = 2 * attributes_room + 16;
            attributes = realloc(attributes, sizeof *attributes * (size_t)attributes_room);
        }
        known = &attributes[attributes_used++];
        *known = (struct attribute){HANDLE(comm), keyval, value};
    }
    known->value = value;
}

#define CREATE_KEYVAL(NAME, COPY, DELETE)                                                                      \
    EXPORTED int MPI_##NAME(COPY *copy, DELETE *delete, int *keyval, void *extra)                              \
    {                                                                                                          \
        if (forwarded())                                                                                       \
            return real_##NAME(copy, delete, keyval, extra);                                                   \
        open_call(FN_##NAME);                                                                                    \
        int result = MPI_SUCCESS;                                                                              \
        REAL(real_##NAME(copy, delete, keyval, extra));                                                        \
        if (result == MPI_SUCCESS)                                                                             \
            OUT(keyval);                                                                                       \
        close_call();                                                                                          \
        return result;                                                                                         \
    }
#define FREE_KEYVAL(NAME)                                                                                      \
    EXPORTED int MPI_##NAME(int *keyval)                                                                       \
    {                                                                                                          \
        if (forwarded())                                                                                       \
            return real_##NAME(keyval);                                                                        \
        open_call(FN_##NAME);                                                                                    \
        int result = MPI_SUCCESS;                                                                              \
        REAL(real_##NAME(keyval));                                                                             \
        OUT(keyval);                                                                                           \
        close_call();                                                                                          \
        return result;                                                                                         \
    }
#define SET_ATTR(NAME)                                                                                         \
    EXPORTED int MPI_##NAME(MPI_Comm comm, int keyval, void *value)                                            \
    {                                                                                                          \
        if (forwarded())                                                                                       \
            return real_##NAME(comm, keyval, value);                                                           \
        open_call(FN_##NAME);                                                                                    \
        ms_in_handle(COMM, HANDLE(comm));                                                                      \
        ms_in(NUMBER, keyval);                                                                                 \
        int result = MPI_SUCCESS;                                                                              \
        REAL(real_##NAME(comm, keyval, value));                                                                \
        keep_attribute(comm, keyval, value);                                                                   \
        close_call();                                                                                          \
        return result;                                                                                         \
    }
#define DELETE_ATTR(NAME)                                                                                      \
    EXPORTED int MPI_##NAME(MPI_Comm comm, int keyval)                                                         \
    {                                                                                                          \
        if (forwarded())                                                                                       \
            return real_##NAME(comm, keyval);                                                                  \
        open_call(FN_##NAME);                                                                                    \
        ms_in_handle(COMM, HANDLE(comm));                                                                      \
        ms_in(NUMBER, keyval);                                                                                 \
        int result = MPI_SUCCESS;                                                                              \
        REAL(real_##NAME(comm, keyval));                                                                       \
        struct attribute *known = attribute(comm, keyval);                                                     \
        if (known)                                                                                             \
            *known = attributes[--attributes_used];                                                            \
        close_call();                                                                                          \
        return result;                                                                                         \
    }
// Of MPI's own attributes each is an address of an int.
#define GET_ATTR(NAME)                                                                                         \
    EXPORTED int MPI_##NAME(MPI_Comm comm, int keyval, void *value, int *flag)                                 \
    {                                                                                                          \
        if (forwarded())                                                                                       \
            return real_##NAME(comm, keyval, value, flag);                                                     \
        open_call(FN_##NAME);                                                                                    \
        ms_in_handle(COMM, HANDLE(comm));                                                                      \
        ms_in(NUMBER, keyval);                                                                                 \
        int result = MPI_SUCCESS;                                                                              \
        REAL(real_##NAME(comm, keyval, value, flag));                                                          \
        if (result == MPI_SUCCESS) {                                                                           \
            struct attribute *known = attribute(comm, keyval);                                                 \
            OUT(flag);                                                                                         \
            if (*flag && !known) {                                                                             \
                int *number = &predefined_values[(unsigned)keyval % 64];                                       \
                if (live() && is_predefined(keyval))                                                           \
                    *number = **(int **)value;                                                                 \
                OUT(number);                                                                                   \
                if (!live())                                                                                   \
                    *(void **)value = number;                                                                  \
            } else if (*flag && !live()) {                                                                     \
                *(void **)value = known->value;                                                                \
            }                                                                                                  \
        }                                                                                                      \
        close_call();                                                                                          \
        return result;                                                                                         \
    }

static int is_predefined(int keyval)
{
    return keyval == MPI_TAG_UB || keyval == MPI_HOST || keyval == MPI_IO || keyval == MPI_WTIME_IS_GLOBAL
        || keyval == MPI_UNIVERSE_SIZE || keyval == MPI_LASTUSEDCODE || keyval == MPI_APPNUM;
}

CREATE_KEYVAL(Comm_create_keyval, MPI_Comm_copy_attr_function, MPI_Comm_delete_attr_function)
FREE_KEYVAL(Comm_free_keyval)
SET_ATTR(Comm_set_attr)
GET_ATTR(Comm_get_attr)
DELETE_ATTR(Comm_delete_attr)
#ifdef HAS_Attr_get
SET_ATTR(Attr_put)
GET_ATTR(Attr_get)
DELETE_ATTR(Attr_delete)
FREE_KEYVAL(Keyval_free)
#endif

// A duplicate has its parent's attributes. Copy and delete functions of the program are not called at replay.
static int duplicated(int function, MPI_Comm comm, MPI_Comm *newcomm, int result)
{
    (void)function;
    result = (int)ms_result(result);
    if (result == MPI_SUCCESS)
        *newcomm = (MPI_Comm)(intptr_t)ms_out_handle(COMM, HANDLE(*newcomm));
    close_call();
    if (result == MPI_SUCCESS) {
        for (int i = 0, used = attributes_used; i < used; i++)
            if (attributes[i].comm == HANDLE(comm))
                keep_attribute(*newcomm, attributes[i].keyval, attributes[i].value);
        describe_comm(*newcomm);
    }
    return result;
}

EXPORTED int MPI_Comm_dup(MPI_Comm comm, MPI_Comm *newcomm)
{
    if (forwarded())
        return real_Comm_dup(comm, newcomm);
    open_call(FN_Comm_dup);
    ms_in_handle(COMM, HANDLE(comm));
    int result = MPI_SUCCESS;
    if (live()) { ms_leave(); depth++; result = real_Comm_dup(comm, newcomm); depth--; }
    return duplicated(FN_Comm_dup, comm, newcomm, result);
}

EXPORTED int MPI_Comm_dup_with_info(MPI_Comm comm, MPI_Info info, MPI_Comm *newcomm)
{
    if (forwarded())
        return real_Comm_dup_with_info(comm, info, newcomm);
    open_call(FN_Comm_dup_with_info);
    ms_in_handle(COMM, HANDLE(comm));
    int result = MPI_SUCCESS;
    if (live()) { ms_leave(); depth++; result = real_Comm_dup_with_info(comm, info, newcomm); depth--; }
    return duplicated(FN_Comm_dup_with_info, comm, newcomm, result);
}

static int comm_gone(int function, MPI_Comm *comm, int (*real)(MPI_Comm *))
{
    open_call(function);
    ms_in_handle(COMM, HANDLE(*comm));
    for (int i = attributes_used - 1; i >= 0; i--)
        if (attributes[i].comm == HANDLE(*comm))
            attributes[i] = attributes[--attributes_used];
    int result = MPI_SUCCESS;
    REAL(real(comm));
    if (result == MPI_SUCCESS)
        *comm = (MPI_Comm)(intptr_t)ms_out_handle(COMM, HANDLE(*comm));
    close_call();
    return result;
}

EXPORTED int MPI_Comm_free(MPI_Comm *comm)
{
    return forwarded() ? real_Comm_free(comm) : comm_gone(FN_Comm_free, comm, real_Comm_free);
}

EXPORTED int MPI_Comm_disconnect(MPI_Comm *comm)
{
    return forwarded() ? real_Comm_disconnect(comm) : comm_gone(FN_Comm_disconnect, comm, real_Comm_disconnect);
}

// ---- copies between C's and Fortran's statuses: the same integers

#define STATUS_COPY(NAME, FROM, TO)                                                                            \
    EXPORTED int MPI_##NAME(const FROM *from, TO *to)                                                          \
    {                                                                                                          \
        if (forwarded() || live())                                                                             \
            return real_##NAME(from, to);                                                                      \
        memmove(to, from, sizeof(MPI_Status));                                                                 \
        return MPI_SUCCESS;                                                                                    \
    }
#ifdef HAS_Status_c2f
STATUS_COPY(Status_c2f, MPI_Status, MPI_Fint)
STATUS_COPY(Status_f2c, MPI_Fint, MPI_Status)
#endif
#ifdef HAS_Status_c2f08
STATUS_COPY(Status_c2f08, MPI_Status, MPI_F08_status)
STATUS_COPY(Status_f082c, MPI_F08_status, MPI_Status)
#endif
