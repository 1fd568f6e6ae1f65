// The beginning and the end of a rank, and MPI's own clocks.

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

// ---- the end of the process

static int finalized, aborted, status_known, exit_status;
static pid_t own_process;

static void exiting(int status, void *unused)
{
    (void)unused;
    status_known = 1;
    exit_status = status;
}

static void watch_exit(void)
{
    own_process = getpid();
    on_exit(exiting, NULL);
}

static __attribute__((destructor)) void finish(void)
{
    // A fork's child, however it was made, and a process that called nothing have no log.
    if (mode == MODE_UNSTARTED || child || getpid() != own_process)
        return;
    int cause = finalized ? ENDED_FINALIZED : ENDED_EXIT;
    if (!status_known)
        cause = ENDED_UNKNOWN;
    // At replay `exit` is called in place of MPI.
    if (aborted)
        cause = ENDED_ABORT;
    depth++;
    ms_finish(cause, exit_status, in_call ? current : -1);
    mode = MODE_OFF;
}

// What runs at the end of a process does not run here. MPI ends so too, where its errors are fatal. A child of vfork has all of our
// memory, and another number.
static _Noreturn void leave(int status)
{
    if ((mode == MODE_RECORD || mode == MODE_REPLAY) && !child && getpid() == own_process)
        ms_leaves(status);
    for (;;)
        syscall(SYS_exit_group, status);
}

EXPORTED _Noreturn void _exit(int status) { leave(status); }
EXPORTED _Noreturn void _Exit(int status) { leave(status); }

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
    finalized = result == MPI_SUCCESS;
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
        aborted = 1;
        exit(code);
    }
    // The core reads clocks, which are not the program's.
    depth++;
    ms_finish(ENDED_ABORT, code, -1);
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
