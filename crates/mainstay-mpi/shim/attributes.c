// Attributes and the communicators that carry them. Values are addresses of the program's, so replay keeps them itself.

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
