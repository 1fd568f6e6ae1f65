// Calls that MPI has twice, with `int` counts and, under a name that ends in `_c`, with large ones. The generator writes this text
// out for both: `@c` is the end of the name, `@int` and `@aint` the types of counts and of addresses, `@displ` that of places in
// the buffer of a collective.
static __attribute__((unused)) int64_t sum_of@c(const @int counts[], int size)
{
    int64_t all = 0;
    for (int i = 0; i < size; i++)
        all += counts[i];
    return all;
}

#define EACH_RANK(NAME, BUFFER, DO)                                                                            \
    static __attribute__((unused)) void NAME##_v_of@c(                                                         \
        BUFFER buf, const @int counts[], const @displ displs[], MPI_Datatype type, int size)             \
    {                                                                                                          \
        if (buf == MPI_IN_PLACE)                                                                               \
            return;                                                                                            \
        int64_t extent = ms_extent(HANDLE(type));                                                              \
        for (int i = 0; i < size; i++) {                                                                       \
            void *at = (char *)buf + displs[i] * extent;                                                       \
            DO(at, counts[i], type);                                                                           \
        }                                                                                                      \
    }                                                                                                          \
    static __attribute__((unused)) void NAME##_w_of@c(                                                         \
        BUFFER buf, const @int counts[], const @displ displs[], const MPI_Datatype types[], int size)    \
    {                                                                                                          \
        if (buf == MPI_IN_PLACE)                                                                               \
            return;                                                                                            \
        for (int i = 0; i < size; i++) {                                                                       \
            void *at = (char *)buf + displs[i];                                                                \
            DO(at, counts[i], types[i]);                                                                       \
        }                                                                                                      \
    }
EACH_RANK(in_data, const void *, IN_WHOLE)
EACH_RANK(out_data, void *, OUT_WHOLE)
EACH_RANK(region, void *, REGION)
#undef EACH_RANK

#ifdef HAS_Type_contiguous@c

// ---- datatypes: made of pieces of others, by us as well as by MPI

EXPORTED int MPI_Type_contiguous@c(@int count, MPI_Datatype oldtype, MPI_Datatype *newtype)
{
    if (forwarded())
        return real_Type_contiguous@c(count, oldtype, newtype);
    open_call(FN_Type_contiguous@c);
    ms_in(COUNT, count);
    ms_in_handle(DATATYPE, HANDLE(oldtype));
    ms_piece(HANDLE(oldtype), (uint64_t)count, 0);
    NEW_TYPE(real_Type_contiguous@c(count, oldtype, newtype));
}

EXPORTED int MPI_Type_create_resized@c(MPI_Datatype oldtype, @aint lb, @aint extent, MPI_Datatype *newtype)
{
    if (forwarded())
        return real_Type_create_resized@c(oldtype, lb, extent, newtype);
    open_call(FN_Type_create_resized@c);
    ms_in_handle(DATATYPE, HANDLE(oldtype));
    ms_in(NUMBER, lb);
    ms_in(NUMBER, extent);
    ms_piece(HANDLE(oldtype), 1, 0);
    NEW_TYPE(real_Type_create_resized@c(oldtype, lb, extent, newtype));
}

EXPORTED int MPI_Type_vector@c(@int count, @int blocklength, @int stride, MPI_Datatype oldtype, MPI_Datatype *newtype)
{
    if (forwarded())
        return real_Type_vector@c(count, blocklength, stride, oldtype, newtype);
    open_call(FN_Type_vector@c);
    vector(count, blocklength, stride * ms_extent(HANDLE(oldtype)), oldtype);
    NEW_TYPE(real_Type_vector@c(count, blocklength, stride, oldtype, newtype));
}

EXPORTED int MPI_Type_create_hvector@c(
    @int count, @int blocklength, @aint stride, MPI_Datatype oldtype, MPI_Datatype *newtype)
{
    if (forwarded())
        return real_Type_create_hvector@c(count, blocklength, stride, oldtype, newtype);
    open_call(FN_Type_create_hvector@c);
    vector(count, blocklength, stride, oldtype);
    NEW_TYPE(real_Type_create_hvector@c(count, blocklength, stride, oldtype, newtype));
}

// Displacements may be addresses, which are others at replay: they are not compared.
static void pieces@c(int64_t count, const @int lengths[], int64_t length, const void *displs, int in_bytes, int64_t unit,
    const MPI_Datatype types[], MPI_Datatype type)
{
    ms_in(COUNT, count);
    for (int64_t i = 0; i < count; i++) {
        int64_t displ = in_bytes ? ((const @aint *)displs)[i] : ((const @int *)displs)[i];
        MPI_Datatype of = types ? types[i] : type;
        ms_in_handle(DATATYPE, HANDLE(of));
        ms_piece(HANDLE(of), (uint64_t)(lengths ? lengths[i] : length), displ * unit);
    }
}

EXPORTED int MPI_Type_indexed@c(
    @int count, const @int lengths[], const @int displs[], MPI_Datatype oldtype, MPI_Datatype *newtype)
{
    if (forwarded())
        return real_Type_indexed@c(count, lengths, displs, oldtype, newtype);
    open_call(FN_Type_indexed@c);
    pieces@c(count, lengths, 0, displs, 0, ms_extent(HANDLE(oldtype)), NULL, oldtype);
    NEW_TYPE(real_Type_indexed@c(count, lengths, displs, oldtype, newtype));
}

EXPORTED int MPI_Type_create_indexed_block@c(
    @int count, @int length, const @int displs[], MPI_Datatype oldtype, MPI_Datatype *newtype)
{
    if (forwarded())
        return real_Type_create_indexed_block@c(count, length, displs, oldtype, newtype);
    open_call(FN_Type_create_indexed_block@c);
    pieces@c(count, NULL, length, displs, 0, ms_extent(HANDLE(oldtype)), NULL, oldtype);
    NEW_TYPE(real_Type_create_indexed_block@c(count, length, displs, oldtype, newtype));
}

EXPORTED int MPI_Type_create_hindexed_block@c(
    @int count, @int length, const @aint displs[], MPI_Datatype oldtype, MPI_Datatype *newtype)
{
    if (forwarded())
        return real_Type_create_hindexed_block@c(count, length, displs, oldtype, newtype);
    open_call(FN_Type_create_hindexed_block@c);
    pieces@c(count, NULL, length, displs, 1, 1, NULL, oldtype);
    NEW_TYPE(real_Type_create_hindexed_block@c(count, length, displs, oldtype, newtype));
}

EXPORTED int MPI_Type_create_hindexed@c(
    @int count, const @int lengths[], const @aint displs[], MPI_Datatype oldtype, MPI_Datatype *newtype)
{
    if (forwarded())
        return real_Type_create_hindexed@c(count, lengths, displs, oldtype, newtype);
    open_call(FN_Type_create_hindexed@c);
    pieces@c(count, lengths, 0, displs, 1, 1, NULL, oldtype);
    NEW_TYPE(real_Type_create_hindexed@c(count, lengths, displs, oldtype, newtype));
}

EXPORTED int MPI_Type_create_struct@c(@int count, const @int lengths[], const @aint displs[], const MPI_Datatype types[],
    MPI_Datatype *newtype)
{
    if (forwarded())
        return real_Type_create_struct@c(count, lengths, displs, types, newtype);
    open_call(FN_Type_create_struct@c);
    pieces@c(count, lengths, 0, displs, 1, 1, types, MPI_DATATYPE_NULL);
    NEW_TYPE(real_Type_create_struct@c(count, lengths, displs, types, newtype));
}

EXPORTED int MPI_Type_create_subarray@c(int ndims, const @int sizes[], const @int subsizes[], const @int starts[],
    int order, MPI_Datatype oldtype, MPI_Datatype *newtype)
{
    if (forwarded())
        return real_Type_create_subarray@c(ndims, sizes, subsizes, starts, order, oldtype, newtype);
    open_call(FN_Type_create_subarray@c);
    ms_in(NUMBER, ndims);
    ms_in_bytes(sizes, sizeof *sizes * (uint64_t)ndims);
    ms_in_bytes(subsizes, sizeof *subsizes * (uint64_t)ndims);
    ms_in_bytes(starts, sizeof *starts * (uint64_t)ndims);
    ms_in_handle(DATATYPE, HANDLE(oldtype));
    // Row by row. Dimension `at(0)` is the one whose elements are neighbours.
    int64_t extent = ms_extent(HANDLE(oldtype)), rows = 1;
#define AT(place) (order == MPI_ORDER_C ? ndims - 1 - (place) : (place))
    for (int d = 1; d < ndims; d++)
        rows *= subsizes[AT(d)];
    for (int64_t row = 0; ndims > 0 && row < rows; row++) {
        int64_t left = row, stride = 1, offset = starts[AT(0)];
        for (int d = 1; d < ndims; d++) {
            stride *= sizes[AT(d - 1)];
            offset += (starts[AT(d)] + left % subsizes[AT(d)]) * stride;
            left /= subsizes[AT(d)];
        }
        ms_piece(HANDLE(oldtype), (uint64_t)subsizes[AT(0)], offset * extent);
    }
#undef AT
    NEW_TYPE(real_Type_create_subarray@c(ndims, sizes, subsizes, starts, order, oldtype, newtype));
}

// ---- packing, and the buffer that is lent to MPI

EXPORTED int MPI_Pack@c(const void *inbuf, @int incount, MPI_Datatype datatype, void *outbuf, @int outsize,
    @int *position, MPI_Comm comm)
{
    if (forwarded())
        return real_Pack@c(inbuf, incount, datatype, outbuf, outsize, position, comm);
    open_call(FN_Pack@c);
    in_data(inbuf, incount, datatype);
    @int before = *position;
    int result = MPI_SUCCESS;
    ms_in(NUMBER, before);
    REAL(real_Pack@c(inbuf, incount, datatype, outbuf, outsize, position, comm));
    if (result == MPI_SUCCESS) {
        OUT(position);
        ms_out((char *)outbuf + before, (uint64_t)(*position - before));
    }
    close_call();
    return result;
}

EXPORTED int MPI_Buffer_attach@c(void *buffer, @int size)
{
    if (forwarded())
        return real_Buffer_attach@c(buffer, size);
    open_call(FN_Buffer_attach@c);
    ms_in(NUMBER, size);
    attached = buffer;
    int result = MPI_SUCCESS;
    REAL(real_Buffer_attach@c(buffer, size));
    close_call();
    return result;
}

EXPORTED int MPI_Buffer_detach@c(void *buffer, @int *size)
{
    if (forwarded())
        return real_Buffer_detach@c(buffer, size);
    open_call(FN_Buffer_detach@c);
    int result = MPI_SUCCESS;
    REAL(real_Buffer_detach@c(buffer, size));
    if (result == MPI_SUCCESS) {
        OUT(size);
        if (!live())
            *(void **)buffer = attached;
    }
    close_call();
    return result;
}

#endif

// ---- names of MPI 1 that not every mpi.h has any more, and none with large counts

#ifdef HAS_Type_hvector@c
EXPORTED int MPI_Type_hvector@c(
    @int count, @int blocklength, @aint stride, MPI_Datatype oldtype, MPI_Datatype *newtype)
{
    if (forwarded())
        return real_Type_hvector@c(count, blocklength, stride, oldtype, newtype);
    open_call(FN_Type_hvector@c);
    vector(count, blocklength, stride, oldtype);
    NEW_TYPE(real_Type_hvector@c(count, blocklength, stride, oldtype, newtype));
}
#endif
#ifdef HAS_Type_hindexed@c
EXPORTED int MPI_Type_hindexed@c(
    @int count, @int lengths[], @aint displs[], MPI_Datatype oldtype, MPI_Datatype *newtype)
{
    if (forwarded())
        return real_Type_hindexed@c(count, lengths, displs, oldtype, newtype);
    open_call(FN_Type_hindexed@c);
    pieces@c(count, lengths, 0, displs, 1, 1, NULL, oldtype);
    NEW_TYPE(real_Type_hindexed@c(count, lengths, displs, oldtype, newtype));
}
#endif
#ifdef HAS_Type_struct@c
EXPORTED int MPI_Type_struct@c(
    @int count, @int lengths[], @aint displs[], MPI_Datatype types[], MPI_Datatype *newtype)
{
    if (forwarded())
        return real_Type_struct@c(count, lengths, displs, types, newtype);
    open_call(FN_Type_struct@c);
    pieces@c(count, lengths, 0, displs, 1, 1, types, MPI_DATATYPE_NULL);
    NEW_TYPE(real_Type_struct@c(count, lengths, displs, types, newtype));
}
#endif
