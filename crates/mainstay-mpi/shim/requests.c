// Statuses and requests: the calls that wait for requests, test, start and free them.

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
