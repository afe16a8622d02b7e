package edgespec;

import static org.junit.Assert.*;

import java.io.File;
import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.security.KeyStore;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLSocketFactory;
import javax.net.ssl.TrustManagerFactory;
import org.junit.After;
import org.junit.BeforeClass;
import org.junit.ClassRule;
import org.junit.Test;
import org.junit.rules.TemporaryFolder;

/** Tests the client with correct, faulty and hostile servers. */
public class WebSocketTest {
    private static final int BINARY = 0x82;

    @ClassRule
    public static final TemporaryFolder folder = new TemporaryFolder();

    private static KeyStore store;
    private RawServer server;
    private WebSocket socket;
    private final LinkedBlockingQueue<byte[]> heard = new LinkedBlockingQueue<>();

    /** The behaviour of a server on one connection. */
    private interface Script {
        void play(RawServer.Connection connection) throws Exception;
    }

    @After
    public void closeBoth() throws IOException {
        if (socket != null) {
            socket.close();
        }
        if (server != null) {
            server.close();
        }
    }

    private void serve(ServerSocket listening, Script script) {
        server = new RawServer(listening) {
            @Override
            void serve(Connection connection) throws Exception {
                script.play(connection);
            }
        };
    }

    private WebSocket connect(String key, Script script) throws IOException {
        serve(RawServer.anyPort(), script);
        socket = WebSocket.connect(Address.parse(server.url()), key, 1000,
                (SSLSocketFactory) SSLSocketFactory.getDefault());
        return socket;
    }

    /** Connects to a server that does the handshake and then follows the script. */
    private WebSocket connected(Script script) throws IOException {
        return connect("", connection -> {
            connection.upgrade();
            script.play(connection);
        });
    }

    private byte[] heard() throws InterruptedException { return heard.poll(5, TimeUnit.SECONDS); }

    private static void refused(Class<? extends Exception> kind, String said,
            org.junit.function.ThrowingRunnable action) {
        String message = assertThrows(said, kind, action).getMessage();
        assertTrue(message, message.contains(said));
    }

    /** Checks the client's error after a server has answered the handshake with this. */
    private void answered(Class<? extends Exception> kind, String said, String response) {
        refused(kind, said, () -> connect("", connection -> connection.write(response)));
    }

    @Test
    public void theHandshakeSaysWhoAsksForWhat() throws Exception {
        connect("a-key", connection -> {
            heard.add((connection.request + " " + connection.headers).getBytes());
            connection.upgrade();
            connection.receive();
        });
        String asked = new String(heard());
        for (String part : List.of("GET /v1/verify HTTP/1.1", "authorization=Bearer a-key",
                "sec-websocket-protocol=edgespec.verify.v2", "sec-websocket-version=13", "host=" + server.name())) {
            assertTrue(asked, asked.contains(part));
        }
    }

    @Test
    public void messagesOfAllSizesBothWays() throws Exception {
        WebSocket found = connected(connection -> {
            while (true) {
                byte[] frame = connection.receive();
                heard.add(Arrays.copyOf(frame, 1));
                connection.send(BINARY, Arrays.copyOfRange(frame, 1, frame.length));
            }
        });
        for (int size : new int[] {0, 1, 125, 126, 65535, 65536, 300000}) {
            byte[] message = new byte[size];
            for (int i = 0; i < size; i++) {
                message[i] = (byte) (7 * i);
            }
            found.send(message);
            assertArrayEquals(message, found.receive(5000));
            assertArrayEquals(new byte[] {2}, heard());
        }
        assertNull("nothing comes unasked", found.receive(20));
    }

    @Test
    public void fragmentsBecomeOneMessage() throws Exception {
        WebSocket found = connected(connection -> {
            connection.send(0x02, new byte[] {1});
            connection.send(0x00, new byte[] {2, 3});
            connection.send(0x8A, new byte[] {5}); // an unsolicited pong
            connection.send(0x89, new byte[] {9}); // a ping between two fragments
            connection.send(0x80, new byte[] {4});
            heard.add(connection.receive());
        });
        assertArrayEquals("a pong, while nobody receives", new byte[] {10, 9}, heard());
        assertArrayEquals(new byte[] {1, 2, 3, 4}, found.receive(5000));
    }

    @Test
    public void closeSaysGoodbye() throws Exception {
        connected(connection -> heard.add(connection.receive())).close();
        assertArrayEquals(new byte[] {8, 0x03, (byte) 0xE8}, heard());
    }

    @Test
    public void theServerCloses() throws Exception {
        WebSocket found = connected(connection -> {
            connection.send(BINARY, new byte[] {1});
            connection.send(0x88, new byte[] {3, (byte) 0xE9});
            heard.add(connection.receive());
        });
        assertArrayEquals("what came before is not lost", new byte[] {1}, found.receive(5000));
        for (int i = 0; i < 2; i++) {
            refused(VerifierException.Unavailable.class, "closed the connection", () -> found.receive(5000));
        }
        assertArrayEquals(new byte[] {8, 3, (byte) 0xE9}, heard());
    }

    @Test
    public void aCutConnection() throws Exception {
        WebSocket found = connected(connection -> connection.out.write(new byte[] {(byte) BINARY, 5, 1, 2}));
        refused(VerifierException.Unavailable.class, "the connection is lost", () -> found.receive(5000));
        refused(VerifierException.Unavailable.class, "lost", () -> {
            for (int i = 0; i < 100; i++) {
                found.send(new byte[1000]);
            }
        });
    }

    @Test
    public void whatAServerMustNotSend() throws Exception {
        broken("masked or extended", BINARY, 0x81, 1, 2, 3, 4, 5);
        broken("masked or extended", 0xC2, 1, 5);
        broken("text message", 0x81, 1, 'a');
        broken("larger than", BINARY, 127, 0, 0, 0, 0, 0x40, 0, 0, 1);
        broken("larger than", BINARY, 127, 0x80, 0, 0, 0, 0, 0, 0, 1);
        broken("larger than", 0x02, 1, 5, 0x80, 127, 0, 0, 0, 0, 0, 0x40, 0, 0);
        broken("wrong order", 0x80, 1, 5);
        broken("wrong order", 0x02, 1, 5, 0x82, 1, 6);
        broken("longer than 125", 0x89, 126, 0, 126);
        broken("in fragments", 0x09, 0);
        broken("unknown kind 3", 0x83, 0);
    }

    /** Checks the client's error after a server has sent these bytes. */
    private void broken(String said, int... bytes) throws IOException {
        WebSocket found = connected(connection -> {
            for (int one : bytes) {
                connection.out.write(one);
            }
            connection.receive();
        });
        refused(ProtocolException.class, said, () -> found.receive(5000));
        closeBoth();
    }

    @Test
    public void handshakesThatFail() {
        Class<VerifierException.Refused> refused = VerifierException.Refused.class;
        Class<VerifierException.Unavailable> unavailable = VerifierException.Unavailable.class;
        answered(refused, "refuses the key", "HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n");
        answered(refused, "no verification server: it answered with HTTP 404", "HTTP/1.1 404 Not Found\r\n\r\n");
        answered(refused, "does not speak HTTP", "SSH-2.0-OpenSSH\r\n\r\n");
        answered(unavailable, "no room now (HTTP 503)", "HTTP/1.1 503 Busy\r\n\r\n");
        answered(unavailable, "ended during the handshake", "HTTP/1.1 101 Yes\r\n");
        refused(ProtocolException.class, "handshake", () -> connect("",
                connection -> connection.upgrade("AAAAAAAAAAAAAAAAAAAAAAAAAAA=", Wire.SUBPROTOCOL)));
        refused(refused, "does not speak edgespec.verify.v2", () -> connect("",
                connection -> connection.upgrade(connection.accept(), "edgespec.verify.v1")));
        refused(unavailable, "timed out", () -> connect("", connection -> connection.in.readUnsignedByte()));
        refused(ProtocolException.class, "without end", () -> connect("", connection -> {
            connection.write("HTTP/1.1 101 Yes\r\n");
            while (true) {
                connection.write("X: " + "x".repeat(500) + "\r\n");
            }
        }));
    }

    // TLS, with a certificate for the name "localhost"

    @BeforeClass
    public static void makeCertificate() throws Exception {
        File file = new File(folder.getRoot(), "store");
        String command = System.getProperty("java.home") + "/bin/keytool -genkeypair -keyalg EC -dname CN=localhost"
                + " -ext san=dns:localhost -storetype PKCS12 -storepass password -keystore " + file;
        assertEquals(0, new ProcessBuilder(command.split(" ")).start().waitFor());
        store = KeyStore.getInstance(file, "password".toCharArray());
    }

    private void connectTls(String host, SSLSocketFactory factory) throws Exception {
        KeyManagerFactory keys = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
        keys.init(store, "password".toCharArray());
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(keys.getKeyManagers(), null, null);
        InetAddress here = InetAddress.getByName("127.0.0.1");
        serve(context.getServerSocketFactory().createServerSocket(0, 5, here), connection -> {
            connection.upgrade();
            connection.send(BINARY, new byte[] {6});
            heard.add(connection.receive());
        });
        String address = "wss://" + host + ":" + server.listening.getLocalPort();
        socket = WebSocket.connect(Address.parse(address), "", 5000, factory);
    }

    private static SSLSocketFactory trusting() throws Exception {
        TrustManagerFactory trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        trust.init(store);
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(null, trust.getTrustManagers(), null);
        return context.getSocketFactory();
    }

    @Test
    public void tls() throws Exception {
        connectTls("localhost", trusting());
        assertArrayEquals(new byte[] {6}, socket.receive(5000));
        socket.send(new byte[] {7});
        assertArrayEquals(new byte[] {2, 7}, heard());
    }

    @Test
    public void certificatesForAnotherNameOrSignedByThemselves() {
        refused(VerifierException.Unavailable.class, "No subject alternative names",
                () -> connectTls("127.0.0.1", trusting()));
        refused(VerifierException.Unavailable.class, "certif",
                () -> connectTls("localhost", (SSLSocketFactory) SSLSocketFactory.getDefault()));
    }

    @Test
    public void addresses() throws VerifierException {
        assertEquals("http://host:8080/tokenize", Address.parse("ws://host:8080").http("/tokenize"));
        assertEquals("https://host:443/tokenize", Address.parse(" wss://host/ ").http("/tokenize"));
        assertEquals("http://[::1]:80/x", Address.parse("HTTP://[::1]").http("/x"));
        assertEquals("::1", Address.parse("http://[::1]").bareHost());
        assertEquals("/edge", Address.parse("https://host/edge/v1/verify").prefix);
        assertEquals("/edge", Address.parse("https://host/edge/v1/").prefix);
        for (String wrong : List.of("host:8080", "ftp://host", "ws://", "ws://a b", "", "ws://k@host")) {
            refused(VerifierException.Refused.class, "is no address", () -> Address.parse(wrong));
        }
    }
}
