// Datatypes (`counts.c` has most), addresses, and memory that MPI hands out or keeps.

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
