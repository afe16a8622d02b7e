package edgespec;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertNull;
import static org.junit.Assert.assertTrue;
import static org.junit.Assert.fail;

import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.util.Arrays;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLSocketFactory;
import javax.net.ssl.TrustManagerFactory;
import org.junit.After;
import org.junit.Test;

/** Tests the client with correct, faulty and hostile servers. */
public class WebSocketTest {
    private static final int BINARY = 0x82;
    private RawServer server;
    private WebSocket socket;
    private final LinkedBlockingQueue<byte[]> heard = new LinkedBlockingQueue<byte[]>();

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

    private void serve(ServerSocket listening, final Script script) {
        server = new RawServer(listening) {
            @Override
            void serve(Connection connection) throws Exception {
                script.play(connection);
            }
        };
    }

    private WebSocket connect(String key, Script script) throws IOException {
        serve(RawServer.anyPort(), script);
        socket = WebSocket.connect(Address.parse(server.url()), key, 3000,
                (SSLSocketFactory) SSLSocketFactory.getDefault());
        return socket;
    }

    /** Connects to a server that does the handshake and then follows the script. */
    private WebSocket connected(final Script script) throws IOException {
        return connect("", new Script() {
            @Override
            public void play(RawServer.Connection connection) throws Exception {
                connection.upgrade();
                script.play(connection);
            }
        });
    }

    private void refused(Class<?> kind, String said, Script script) throws IOException {
        try {
            connect("", script);
            fail("that was no handshake");
        } catch (VerifierException error) {
            assertEquals(error.getMessage(), kind, error.getClass());
            assertTrue(error.getMessage(), error.getMessage().contains(said));
        }
    }

    private void answered(Class<?> kind, String said, final String response) throws IOException {
        refused(kind, said, new Script() {
            @Override
            public void play(RawServer.Connection connection) throws Exception {
                connection.write(response);
            }
        });
    }

    /** Checks the client's error after a server has sent these bytes. */
    private void broken(String said, final int... bytes) throws IOException {
        WebSocket found = connected(new Script() {
            @Override
            public void play(RawServer.Connection connection) throws Exception {
                for (int one : bytes) {
                    connection.out.write(one);
                }
                heard.add(connection.receive());
            }
        });
        lost(found, ProtocolException.class, said);
    }

    private static void lost(WebSocket socket, Class<?> kind, String said) {
        try {
            byte[] message = socket.receive(5000);
            fail("this came: " + (message == null ? "nothing" : Server.hex(message)));
        } catch (VerifierException error) {
            assertEquals(error.getMessage(), kind, error.getClass());
            assertTrue(error.getMessage(), error.getMessage().contains(said));
        }
    }

    @Test
    public void theHandshakeSaysWhoAsksForWhat() throws Exception {
        connect("a-key", new Script() {
            @Override
            public void play(RawServer.Connection connection) throws Exception {
                heard.add((connection.request + " " + connection.headers).getBytes("UTF-8"));
                connection.upgrade();
                connection.receive();
            }
        });
        String asked = new String(heard.poll(5, TimeUnit.SECONDS), "UTF-8");
        assertTrue(asked, asked.startsWith("GET /v1/verify HTTP/1.1"));
        assertTrue(asked, asked.contains("authorization=Bearer a-key"));
        assertTrue(asked, asked.contains("sec-websocket-protocol=edgespec.verify.v1"));
        assertTrue(asked, asked.contains("sec-websocket-version=13"));
        assertTrue(asked, asked.contains("host=127.0.0.1:" + server.port()));
    }

    @Test
    public void messagesOfAllSizesBothWays() throws Exception {
        WebSocket found = connected(new Script() {
            @Override
            public void play(RawServer.Connection connection) throws Exception {
                while (true) {
                    byte[] frame = connection.receive();
                    heard.add(Arrays.copyOf(frame, 1));
                    connection.send(BINARY, Arrays.copyOfRange(frame, 1, frame.length));
                }
            }
        });
        for (int size : new int[] {0, 1, 125, 126, 65535, 65536, 300000}) {
            byte[] message = new byte[size];
            for (int i = 0; i < size; i++) {
                message[i] = (byte) (7 * i);
            }
            found.send(message);
            assertArrayEquals(message, found.receive(5000));
            assertArrayEquals(new byte[] {2}, heard.poll(5, TimeUnit.SECONDS));
        }
        assertNull("nothing comes unasked", found.receive(20));
    }

    @Test
    public void fragmentsBecomeOneMessage() throws Exception {
        WebSocket found = connected(new Script() {
            @Override
            public void play(RawServer.Connection connection) throws Exception {
                connection.send(0x02, new byte[] {1});
                connection.send(0x00, new byte[] {2, 3});
                connection.send(0x89, new byte[] {9}); // a ping between two fragments
                connection.send(0x00, new byte[0]);
                connection.send(0x80, new byte[] {4});
                heard.add(connection.receive());
            }
        });
        assertArrayEquals(new byte[] {1, 2, 3, 4}, found.receive(5000));
        assertArrayEquals("a pong with the ping's payload", new byte[] {10, 9}, heard.poll(5, TimeUnit.SECONDS));
    }

    @Test
    public void pingsAreAnsweredWhileNobodyReceives() throws Exception {
        connected(new Script() {
            @Override
            public void play(RawServer.Connection connection) throws Exception {
                connection.send(0x89, new byte[0]);
                connection.send(0x8A, new byte[] {5}); // an unsolicited pong
                connection.send(0x89, "abc".getBytes("UTF-8"));
                heard.add(connection.receive());
                heard.add(connection.receive());
            }
        });
        assertArrayEquals(new byte[] {10}, heard.poll(5, TimeUnit.SECONDS));
        assertArrayEquals("\nabc".getBytes("UTF-8"), heard.poll(5, TimeUnit.SECONDS));
    }

    @Test
    public void closeSaysGoodbye() throws Exception {
        WebSocket found = connected(new Script() {
            @Override
            public void play(RawServer.Connection connection) throws Exception {
                heard.add(connection.receive());
            }
        });
        found.close();
        assertArrayEquals(new byte[] {8, 0x03, (byte) 0xE8}, heard.poll(5, TimeUnit.SECONDS));
    }

    @Test
    public void theServerCloses() throws Exception {
        WebSocket found = connected(new Script() {
            @Override
            public void play(RawServer.Connection connection) throws Exception {
                connection.send(BINARY, new byte[] {1});
                connection.send(0x88, new byte[] {3, (byte) 0xE9});
                heard.add(connection.receive());
            }
        });
        assertArrayEquals("what came before is not lost", new byte[] {1}, found.receive(5000));
        lost(found, VerifierException.Unavailable.class, "closed the connection");
        lost(found, VerifierException.Unavailable.class, "closed the connection");
        assertArrayEquals(new byte[] {8, 3, (byte) 0xE9}, heard.poll(5, TimeUnit.SECONDS));
    }

    @Test
    public void aCutConnection() throws Exception {
        WebSocket found = connected(new Script() {
            @Override
            public void play(RawServer.Connection connection) throws Exception {
                connection.out.write(new byte[] {(byte) BINARY, 5, 1, 2});
            }
        });
        lost(found, VerifierException.Unavailable.class, "the connection is lost");
        try {
            for (int i = 0; i < 100; i++) {
                found.send(new byte[1000]);
            }
            fail("it was sent into nothing");
        } catch (VerifierException.Unavailable error) {
            assertTrue(error.getMessage(), error.getMessage().contains("lost"));
        }
    }

    @Test
    public void whatAServerMustNotSend() throws IOException {
        broken("masked or extended", BINARY, 0x81, 1, 2, 3, 4, 5);
    }

    @Test
    public void extensionsNobodyAskedFor() throws IOException {
        broken("masked or extended", 0xC2, 1, 5);
    }

    @Test
    public void textMessages() throws IOException {
        broken("text message", 0x81, 1, 'a');
    }

    @Test
    public void aLengthBeyondTheLimit() throws IOException {
        broken("larger than", BINARY, 127, 0, 0, 0, 0, 0x40, 0, 0, 1);
    }

    @Test
    public void aNegativeLength() throws IOException {
        broken("larger than", BINARY, 127, 0x80, 0, 0, 0, 0, 0, 0, 1);
    }

    @Test
    public void fragmentsThatAddUpToTooMuch() throws Exception {
        WebSocket found = connected(new Script() {
            @Override
            public void play(RawServer.Connection connection) throws Exception {
                connection.send(0x02, new byte[WebSocket.MAX_MESSAGE - 1]);
                connection.send(0x80, new byte[2]);
                connection.receive();
            }
        });
        lost(found, ProtocolException.class, "larger than");
    }

    @Test
    public void aContinuationOfNothing() throws IOException {
        broken("wrong order", 0x80, 1, 5);
    }

    @Test
    public void aMessageInsideAnother() throws IOException {
        broken("wrong order", 0x02, 1, 5, 0x82, 1, 6);
    }

    @Test
    public void aLongPing() throws IOException {
        broken("longer than 125", 0x89, 126, 0, 126);
    }

    @Test
    public void aPingInFragments() throws IOException {
        broken("in fragments", 0x09, 0);
    }

    @Test
    public void anUnknownKindOfFrame() throws IOException {
        broken("unknown kind 3", 0x83, 0);
    }

    @Test
    public void aWrongAcceptKey() throws IOException {
        refused(ProtocolException.class, "handshake", new Script() {
            @Override
            public void play(RawServer.Connection connection) throws Exception {
                connection.upgrade("AAAAAAAAAAAAAAAAAAAAAAAAAAA=", Wire.SUBPROTOCOL);
            }
        });
    }

    @Test
    public void anotherProtocol() throws IOException {
        refused(VerifierException.Refused.class, "does not speak edgespec.verify.v1", new Script() {
            @Override
            public void play(RawServer.Connection connection) throws Exception {
                connection.upgrade(connection.accept(), "chat");
            }
        });
    }

    @Test
    public void aWrongKey() throws IOException {
        answered(VerifierException.Refused.class, "refuses the key",
                "HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n");
    }

    @Test
    public void noRoom() throws IOException {
        answered(VerifierException.Unavailable.class, "no room now (HTTP 503)",
                "HTTP/1.1 503 Busy\r\n\r\n");
    }

    @Test
    public void anotherKindOfServer() throws IOException {
        answered(VerifierException.Refused.class, "no verification server: it answered with HTTP 404",
                "HTTP/1.1 404 Not Found\r\n\r\n");
        answered(VerifierException.Refused.class, "does not speak HTTP", "SSH-2.0-OpenSSH\r\n\r\n");
    }

    @Test
    public void headersWithoutEnd() throws IOException {
        refused(ProtocolException.class, "without end", new Script() {
            @Override
            public void play(RawServer.Connection connection) throws Exception {
                connection.write("HTTP/1.1 101 Yes\r\n");
                while (true) {
                    connection.write("X: " + new String(new char[500]).replace('\0', 'x') + "\r\n");
                }
            }
        });
    }

    @Test
    public void anEndDuringTheHandshake() throws IOException {
        answered(VerifierException.Unavailable.class, "ended during the handshake", "HTTP/1.1 101 Yes\r\n");
    }

    @Test
    public void nobodyThere() throws IOException {
        ServerSocket taken = RawServer.anyPort();
        String url = "ws://127.0.0.1:" + taken.getLocalPort();
        taken.close();
        try {
            WebSocket.connect(Address.parse(url), "", 3000, null);
            fail("nobody is there");
        } catch (VerifierException.Unavailable error) {
            assertTrue(error.getMessage(), error.getMessage().contains("no verification server answers at 127"));
        }
    }

    @Test
    public void aServerThatSaysNothing() throws IOException {
        serve(RawServer.anyPort(), new Script() {
            @Override
            public void play(RawServer.Connection connection) throws Exception {
                connection.in.readUnsignedByte();
            }
        });
        try {
            WebSocket.connect(Address.parse(server.url()), "", 100, null);
            fail("it said nothing");
        } catch (VerifierException.Unavailable error) {
            assertTrue(error.getMessage(), error.getMessage().contains("timed out"));
        }
    }

    // TLS, with a certificate for the name "localhost"

    private void serveTls() throws Exception {
        KeyManagerFactory keys = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
        keys.init(TestCertificate.store(), TestCertificate.PASSWORD);
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(keys.getKeyManagers(), null, null);
        serve(context.getServerSocketFactory().createServerSocket(0, 5, InetAddress.getByName("127.0.0.1")),
                new Script() {
                    @Override
                    public void play(RawServer.Connection connection) throws Exception {
                        connection.upgrade();
                        connection.send(BINARY, new byte[] {6});
                        heard.add(connection.receive());
                    }
                });
    }

    private static SSLSocketFactory trusting() throws Exception {
        TrustManagerFactory trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        trust.init(TestCertificate.store());
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(null, trust.getTrustManagers(), null);
        return context.getSocketFactory();
    }

    @Test
    public void tls() throws Exception {
        serveTls();
        socket = WebSocket.connect(Address.parse("wss://localhost:" + server.port()), "", 5000, trusting());
        assertArrayEquals(new byte[] {6}, socket.receive(5000));
        socket.send(new byte[] {7});
        assertArrayEquals(new byte[] {2, 7}, heard.poll(5, TimeUnit.SECONDS));
    }

    @Test
    public void aCertificateForAnotherName() throws Exception {
        serveTls();
        try {
            WebSocket.connect(Address.parse("wss://127.0.0.1:" + server.port()), "", 5000, trusting());
            fail("the certificate is for localhost");
        } catch (VerifierException.Unavailable error) {
            assertTrue(error.getMessage(), error.getMessage().contains("No subject alternative names"));
        }
    }

    @Test
    public void aCertificateThatNobodyVouchesFor() throws Exception {
        serveTls();
        try {
            WebSocket.connect(Address.parse("wss://localhost:" + server.port()), "", 5000,
                    (SSLSocketFactory) SSLSocketFactory.getDefault());
            fail("it is signed by itself");
        } catch (VerifierException.Unavailable error) {
            assertTrue(error.getMessage(), error.getMessage().contains("certif"));
        }
    }

    @Test
    public void base64() throws Exception {
        for (int n = 0; n < 20; n++) {
            byte[] data = new byte[n];
            Arrays.fill(data, (byte) (200 + n));
            assertEquals(java.util.Base64.getEncoder().encodeToString(data), Base64.encode(data));
        }
    }

    @Test
    public void addresses() throws VerifierException {
        assertEquals("http://host:8080/tokenize", Address.parse("ws://host:8080").http("/tokenize"));
        assertEquals("https://host:443/tokenize", Address.parse(" wss://host/ ").http("/tokenize"));
        assertEquals("http://[::1]:80/x", Address.parse("HTTP://[::1]").http("/x"));
        assertEquals("::1", Address.parse("http://[::1]").bareHost());
        assertEquals("/edge", Address.parse("https://host/edge/v1/verify").prefix);
        assertEquals("/edge", Address.parse("https://host/edge/v1/").prefix);
        for (String wrong : new String[] {"host:8080", "ftp://host", "ws://", "ws://a b", "", "ws://k@host"}) {
            try {
                Address.parse(wrong);
                fail(wrong + " is no address");
            } catch (VerifierException.Refused error) {
                assertTrue(error.getMessage(), error.getMessage().contains("is no address"));
            }
        }
    }
}
