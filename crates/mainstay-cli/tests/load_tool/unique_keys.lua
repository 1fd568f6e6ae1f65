-- For wrk: every request takes 1 out of `pool` under a key of its own. Writes down what is sent and what is answered, one
-- file per thread, in the folder given behind `--`. One connection per thread, so that an answer belongs to the last key.
local threads = 0

function setup(thread)
  thread:set("number", threads)
  threads = threads + 1
end

function init(arguments)
  sent = assert(io.open(arguments[1] .. "/sent-" .. number, "w"))
  answered = assert(io.open(arguments[1] .. "/answered-" .. number, "w"))
  count = 0
end

function request()
  count = count + 1
  key = number .. "-" .. count
  sent:write(key, "\n")
  sent:flush()
  return wrk.format("POST", "/call", { ["Idempotency-Key"] = key }, '{"withdraw":{"account":"pool","amount":1}}')
end

function response(status, headers, body)
  answered:write(key, " ", status, " ", body, "\n")
  answered:flush()
end
