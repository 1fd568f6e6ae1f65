// Clocks of the C library: what a program sends often hangs on them.

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
