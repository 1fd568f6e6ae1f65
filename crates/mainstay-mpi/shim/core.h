// The core's functions, as `src/interface.rs` has them.
//
// Steps of a call stand between ms_open and ms_leave or between ms_result (before it ms_has_sent) and ms_close, on one thread: they
// count on the lock that those keep. Others (ms_comm, ms_comm_is, ms_extent, ms_piece, ms_type, ms_fortran, ms_unhandled) may stand anywhere.
#include <stdint.h>

enum { MODE_OFF = 0, MODE_RECORD = 1, MODE_REPLAY = 2, MODE_UNSTARTED = 3 };
enum { NUMBER = 1, PEER = 2, TAG = 3, COUNT = 4 };
enum {
    COMM = 1, DATATYPE = 2, GROUP = 3, OP = 4, REQUEST = 5,
    ERRHANDLER = 6, INFO = 7, WIN = 8, FILE_KIND = 9, MESSAGE_KIND = 10
};
// What a request is, for ms_request.
enum { ONCE = 0, PERSISTENT = 1, WHOLE = 2, OVER = 3 };

void ms_name(const char *name);
void ms_predefined(int kind, uint64_t index, uint64_t handle);
int ms_begin(int pointer_handles, void (*stop)(const char *));
void ms_rank(int rank, int size, const char *library);
int ms_next_is(int function);
void ms_open(int function);
void ms_in(int role, int64_t value);
// Several in one step: `what` is a role, or HANDLES and the kind of a handle.
enum { HANDLES = 16 };
struct ms_input { int what; int64_t value; };
void ms_inputs(const struct ms_input *inputs, int count);
void ms_in_handle(int kind, uint64_t handle);
void ms_in_data(const void *address, int64_t count, uint64_t datatype);
void ms_in_sent(const void *address, int64_t count, uint64_t datatype, int overwritten);
void ms_in_bytes(const void *address, uint64_t length);
void ms_leave(void);
void ms_has_sent(void);
int64_t ms_result(int64_t value);
void ms_may_have_received(void);
void ms_out(void *address, uint64_t length);
uint64_t ms_out_handle(int kind, uint64_t handle);
void ms_out_data(void *address, int64_t count, uint64_t datatype, uint64_t limit);
void ms_out_message(void *address, int64_t count, uint64_t datatype, uint64_t limit);
void ms_region(void *address, int64_t count, uint64_t datatype);
void ms_source(const void *address, int64_t count, uint64_t datatype);
uint64_t ms_request(uint64_t handle, int *null, int what);
void ms_start(uint64_t handle);
void ms_wait(void);
void ms_await(uint64_t handle);
void ms_in_request(uint64_t handle);
void ms_forget(uint64_t handle);
int ms_done(uint64_t index, uint64_t handle, int null, uint64_t bytes);
uint64_t ms_status(void *raw, uint64_t length, int64_t source, int64_t tag, uint64_t bytes);
void ms_miss(void);
int ms_close(void);
void ms_unhandled(int function);
void ms_piece(uint64_t datatype, uint64_t blocklength, int64_t offset);
int64_t ms_extent(uint64_t datatype);
void ms_type(uint64_t handle, int64_t extent, int plain_bytes);
void ms_comm(uint64_t handle, int rank, int size, int remote_size, const int *peers, uint64_t count, const int *locals,
    uint64_t local_count);
int ms_comm_is(uint64_t handle, int what);
void ms_fortran(int kind, uint64_t handle, int fortran);
void ms_fortran_end(void);
uint64_t ms_from_fortran(int kind, int fortran, uint64_t otherwise);
int ms_to_fortran(int kind, uint64_t handle, int otherwise);
// How the process ended; `function`: the call that it is in, or -1.
enum { ENDED_UNKNOWN = 0, ENDED_FINALIZED = 1, ENDED_EXIT = 2, ENDED_ABORT = 3 };
void ms_finish(int cause, int status, int function);
void ms_leaves(int status);
uint64_t ms_calls(void);
void ms_forget_all(void);
