import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.geode.cache.Cache;
import org.apache.geode.cache.CacheFactory;
import org.apache.geode.cache.Region;
import org.apache.geode.cache.RegionShortcut;
import org.apache.geode.cache.client.ClientCacheFactory;
import org.apache.geode.cache.client.ClientRegionShortcut;
import org.apache.geode.cache.server.CacheServer;

/**
 * A process of an Apache Geode cluster with a replicated region. "server NAME PORT LOCATOR_PORT first|other" serves a copy of it; "client PORT..." puts: a
 * line "THREADS BYTES MILLISECONDS" on standard input makes so many threads put, one value after the other each, for so long; the answer is
 * "OPERATIONS SECONDS". Both end with their standard input.
 */
public final class Member {
  private static final int KEYS = 1000;

  private static void serve(String[] arguments) throws Exception {
    String locator = "127.0.0.1[" + arguments[3] + "]";
    CacheFactory factory = new CacheFactory();
    factory.set("name", arguments[1]).set("bind-address", "127.0.0.1").set("mcast-port", "0");
    factory.set("locators", locator).set("log-level", "error").set("statistic-sampling-enabled", "false");
    factory.set("jmx-manager", "false").set("enable-cluster-configuration", "false");
    factory.set("use-cluster-configuration", "false");
    if (arguments[4].equals("first")) {
      factory.set("start-locator", locator);
    }
    Cache cache = factory.create();
    cache.createRegionFactory(RegionShortcut.REPLICATE).create("data");
    CacheServer server = cache.addCacheServer();
    server.setBindAddress("127.0.0.1");
    server.setPort(Integer.parseInt(arguments[2]));
    server.start();
    System.out.println("ready");
    while (System.in.read() >= 0) {}
  }

  private static void put(String[] arguments) throws Exception {
    ClientCacheFactory factory = new ClientCacheFactory();
    factory.set("log-level", "error").set("statistic-sampling-enabled", "false");
    for (int place = 1; place < arguments.length; place++) {
      factory.addPoolServer("127.0.0.1", Integer.parseInt(arguments[place]));
    }
    factory.setPoolMaxConnections(-1);
    Region<String, byte[]> region =
        factory.create().<String, byte[]>createClientRegionFactory(ClientRegionShortcut.PROXY).create("data");
    System.out.println("ready");
    BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
    for (String line = lines.readLine(); line != null; line = lines.readLine()) {
      String[] order = line.split(" ");
      int bytes = Integer.parseInt(order[1]);
      long began = System.nanoTime();
      long end = began + Long.parseLong(order[2]) * 1_000_000L;
      AtomicLong operations = new AtomicLong();
      List<Thread> threads = new ArrayList<>();
      for (int number = 0; number < Integer.parseInt(order[0]); number++) {
        String of = number + "-";
        Thread thread = new Thread(() -> {
          long done = 0;
          while (System.nanoTime() < end) {
            region.put(of + done % KEYS, new byte[bytes]);
            done++;
          }
          operations.addAndGet(done);
        });
        thread.start();
        threads.add(thread);
      }
      for (Thread thread : threads) {
        thread.join();
      }
      System.out.println(operations + " " + (System.nanoTime() - began) / 1e9);
    }
  }

  public static void main(String[] arguments) throws Exception {
    if (arguments[0].equals("server")) {
      serve(arguments);
    } else {
      put(arguments);
    }
    System.exit(0);
  }
}
