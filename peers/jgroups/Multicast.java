import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import org.jgroups.BytesMessage;
import org.jgroups.JChannel;
import org.jgroups.Message;
import org.jgroups.Receiver;

/**
 * One member of a JGroups cluster, as a process. Arguments: stack file, cluster, members. A line "WINDOW BYTES MILLISECONDS" on standard input
 * makes it multicast for so long with so many multicasts outstanding; one is done when every other member has told that it was delivered there.
 * The answer is "OPERATIONS SECONDS". It ends with its standard input.
 */
public final class Multicast implements Receiver {
  private static final byte PAYLOAD = 1;
  private static final byte DELIVERED = 2;

  private final JChannel channel;
  private final int others;
  private final ConcurrentHashMap<Long, AtomicInteger> missing = new ConcurrentHashMap<>();
  private volatile Semaphore window = new Semaphore(0);

  private Multicast(String stack, String cluster, int members) throws Exception {
    others = members - 1;
    channel = new JChannel(stack);
    channel.setReceiver(this);
    channel.connect(cluster);
    while (channel.getView().size() < members) {
      Thread.sleep(20);
    }
  }

  @Override
  public void receive(Message message) {
    ByteBuffer bytes = ByteBuffer.wrap(message.getArray(), message.getOffset(), message.getLength());
    byte kind = bytes.get();
    long number = bytes.getLong();
    if (kind == DELIVERED) {
      AtomicInteger left = missing.get(number);
      if (left != null && left.decrementAndGet() == 0) {
        missing.remove(number);
        window.release();
      }
    } else if (!message.getSrc().equals(channel.getAddress())) {
      byte[] told = ByteBuffer.allocate(9).put(DELIVERED).putLong(number).array();
      try {
        channel.send(new BytesMessage(message.getSrc(), told).setFlag(Message.Flag.OOB));
      } catch (Exception error) {
        throw new IllegalStateException(error);
      }
    }
  }

  private long multicast(long first, int outstanding, int bytes, long milliseconds) throws Exception {
    window = new Semaphore(outstanding);
    long end = System.nanoTime() + milliseconds * 1_000_000L;
    long number = first;
    while (System.nanoTime() < end) {
      window.acquire();
      byte[] payload = ByteBuffer.allocate(9 + bytes).put(PAYLOAD).putLong(number).array();
      missing.put(number, new AtomicInteger(others));
      channel.send(new BytesMessage(null, payload));
      number++;
    }
    window.acquire(outstanding);
    return number;
  }

  public static void main(String[] arguments) throws Exception {
    Multicast member = new Multicast(arguments[0], arguments[1], Integer.parseInt(arguments[2]));
    System.out.println("ready");
    BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
    long number = 0;
    for (String line = lines.readLine(); line != null; line = lines.readLine()) {
      String[] order = line.split(" ");
      long began = System.nanoTime();
      long next =
          member.multicast(number, Integer.parseInt(order[0]), Integer.parseInt(order[1]), Long.parseLong(order[2]));
      System.out.println((next - number) + " " + (System.nanoTime() - began) / 1e9);
      number = next;
    }
    System.exit(0);
  }
}
