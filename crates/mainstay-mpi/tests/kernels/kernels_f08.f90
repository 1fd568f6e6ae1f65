! Fortran through `use mpi_f08`: types for handles, no error arguments, a derived type, wildcards, requests, a split.
program kernels
  use mpi_f08
  implicit none
  integer :: rank, size, left, right, token, i, step, count, index
  type(MPI_Comm) :: half
  type(MPI_Status) :: status
  type(MPI_Request) :: requests(4)
  type(MPI_Datatype) :: column
  double precision :: total, sum
  double precision, asynchronous, volatile :: field(0:101), matrix(10, 10), got(10)
  logical :: flag

  call MPI_Init()
  call MPI_Comm_rank(MPI_COMM_WORLD, rank)
  call MPI_Comm_size(MPI_COMM_WORLD, size)
  right = mod(rank + 1, size)
  left = mod(rank + size - 1, size)

  token = rank
  do i = 1, size
     call MPI_Sendrecv_replace(token, 1, MPI_INTEGER, right, i, left, i, MPI_COMM_WORLD, status)
     if (status%MPI_SOURCE /= left .or. status%MPI_TAG /= i) call wrong('status')
  end do
  if (token /= rank) call wrong('token')

  field = rank
  do step = 1, 10
     call MPI_Irecv(field(0), 1, MPI_DOUBLE_PRECISION, left, 1, MPI_COMM_WORLD, requests(1))
     call MPI_Irecv(field(101), 1, MPI_DOUBLE_PRECISION, right, 2, MPI_COMM_WORLD, requests(2))
     call MPI_Isend(field(1), 1, MPI_DOUBLE_PRECISION, left, 2, MPI_COMM_WORLD, requests(3))
     call MPI_Isend(field(100), 1, MPI_DOUBLE_PRECISION, right, 1, MPI_COMM_WORLD, requests(4))
     if (mod(step, 2) == 0) then
        call MPI_Waitall(4, requests, MPI_STATUSES_IGNORE)
     else
        do i = 1, 4
           call MPI_Waitany(4, requests, index, status)
        end do
     end if
     do i = 1, 4
        if (requests(i) /= MPI_REQUEST_NULL) call wrong('request')
     end do
     field(1:100) = (field(0:99) + field(1:100) + field(2:101)) / 3
  end do
  sum = 0
  do i = 1, 100
     sum = sum + field(i)
  end do
  call MPI_Allreduce(sum, total, 1, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD)
  if (abs(total - 50d0 * size * (size - 1)) > 1d-6) call wrong('total')

  call MPI_Type_vector(10, 1, 10, MPI_DOUBLE_PRECISION, column)
  call MPI_Type_commit(column)
  do i = 1, 10
     matrix(3, i) = 100 * rank + i
  end do
  call MPI_Irecv(got, 10, MPI_DOUBLE_PRECISION, left, 5, MPI_COMM_WORLD, requests(1))
  call MPI_Send(matrix(3, 1), 1, column, right, 5, MPI_COMM_WORLD)
  flag = .false.
  do while (.not. flag)
     call MPI_Test(requests(1), flag, status)
  end do
  call MPI_Get_count(status, MPI_DOUBLE_PRECISION, count)
  if (count /= 10 .or. abs(got(7) - 100 * left - 7) > 0) call wrong('column')
  call MPI_Type_free(column)

  call MPI_Comm_split(MPI_COMM_WORLD, mod(rank, 2), rank, half)
  call MPI_Bcast(token, 1, MPI_INTEGER, 0, half)
  call MPI_Comm_free(half)
  if (half /= MPI_COMM_NULL) call wrong('freed')
  if (rank == 0) then
     do i = 1, size - 1
        call MPI_Recv(token, 1, MPI_INTEGER, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, status)
        print *, 'from', status%MPI_SOURCE, token
     end do
  else
     call MPI_Send(rank, 1, MPI_INTEGER, 0, 9 + rank, MPI_COMM_WORLD)
  end if
  print *, 'rank', rank, token, total
  call MPI_Finalize()
contains
  subroutine wrong(what)
    character(*), intent(in) :: what
    print *, 'rank', rank, 'wrong ', what
    call MPI_Abort(MPI_COMM_WORLD, 1)
  end subroutine
end program
