! Fortran through `use mpi`: a ring, a halo exchange with requests, a reduction, a split, persistent requests, Waitany.
program kernels
  use mpi
  implicit none
  integer :: rank, size, ierr, left, right, token, i, step, half, half_rank, index, column
  integer :: requests(4), status(MPI_STATUS_SIZE), statuses(MPI_STATUS_SIZE, 4), count
  double precision :: sum, total
  ! What a request fills or sends while the compiler looks away.
  double precision, volatile :: field(0:101), matrix(10, 10), got(10)
  logical :: flag

  call MPI_Init(ierr)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, ierr)
  call MPI_Comm_size(MPI_COMM_WORLD, size, ierr)
  right = mod(rank + 1, size)
  left = mod(rank + size - 1, size)

  token = rank
  do i = 1, size
     call MPI_Sendrecv_replace(token, 1, MPI_INTEGER, right, i, left, i, MPI_COMM_WORLD, status, ierr)
     if (status(MPI_SOURCE) /= left) call wrong('source')
  end do
  if (token /= rank) call wrong('token')

  field = rank
  do step = 1, 20
     call MPI_Irecv(field(0), 1, MPI_DOUBLE_PRECISION, left, 1, MPI_COMM_WORLD, requests(1), ierr)
     call MPI_Irecv(field(101), 1, MPI_DOUBLE_PRECISION, right, 2, MPI_COMM_WORLD, requests(2), ierr)
     call MPI_Isend(field(1), 1, MPI_DOUBLE_PRECISION, left, 2, MPI_COMM_WORLD, requests(3), ierr)
     call MPI_Isend(field(100), 1, MPI_DOUBLE_PRECISION, right, 1, MPI_COMM_WORLD, requests(4), ierr)
     if (mod(step, 3) == 0) then
        call MPI_Waitall(4, requests, statuses, ierr)
     else if (mod(step, 3) == 1) then
        do i = 1, 4
           call MPI_Waitany(4, requests, index, status, ierr)
        end do
     else
        do i = 1, 4
           flag = .false.
           do while (.not. flag)
              call MPI_Test(requests(i), flag, status, ierr)
           end do
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
  call MPI_Allreduce(sum, total, 1, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD, ierr)
  if (abs(total - 50d0 * size * (size - 1)) > 1d-6) call wrong('total')

  call MPI_Type_vector(10, 1, 10, MPI_DOUBLE_PRECISION, column, ierr)
  call MPI_Type_commit(column, ierr)
  matrix = rank
  call MPI_Recv_init(got, 10, MPI_DOUBLE_PRECISION, left, 5, MPI_COMM_WORLD, requests(1), ierr)
  call MPI_Send_init(matrix(3, 1), 1, column, right, 5, MPI_COMM_WORLD, requests(2), ierr)
  do step = 1, 5
     matrix(3, :) = step * 100 + rank
     call MPI_Startall(2, requests, ierr)
     call MPI_Waitall(2, requests, MPI_STATUSES_IGNORE, ierr)
     if (abs(got(7) - step * 100 - left) > 0) call wrong('column')
  end do
  call MPI_Request_free(requests(1), ierr)
  call MPI_Request_free(requests(2), ierr)
  call MPI_Type_free(column, ierr)

  call MPI_Comm_split(MPI_COMM_WORLD, mod(rank, 2), rank, half, ierr)
  call MPI_Comm_rank(half, half_rank, ierr)
  call MPI_Bcast(token, 1, MPI_INTEGER, 0, half, ierr)
  call MPI_Allreduce(MPI_IN_PLACE, sum, 1, MPI_DOUBLE_PRECISION, MPI_MAX, half, ierr)
  call MPI_Comm_free(half, ierr)
  if (rank == 0) then
     do i = 1, size - 1
        call MPI_Recv(token, 1, MPI_INTEGER, MPI_ANY_SOURCE, 9, MPI_COMM_WORLD, status, ierr)
        call MPI_Get_count(status, MPI_INTEGER, count, ierr)
        if (count /= 1) call wrong('count')
        print *, 'from', status(MPI_SOURCE)
     end do
  else
     call MPI_Send(rank, 1, MPI_INTEGER, 0, 9, MPI_COMM_WORLD, ierr)
  end if
  print *, 'rank', rank, token, half_rank, sum, total
  call MPI_Finalize(ierr)
contains
  subroutine wrong(what)
    character(*), intent(in) :: what
    print *, 'rank', rank, 'wrong ', what
    call MPI_Abort(MPI_COMM_WORLD, 1, ierr)
  end subroutine
end program
