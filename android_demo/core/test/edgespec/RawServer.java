package edgespec;

import java.io.BufferedInputStream;
import java.io.Closeable;
import java.io.DataInputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.io.UncheckedIOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.Base64;
import java.util.List;
import java.util.Locale;
import java.util.TreeMap;
import java.util.concurrent.CopyOnWriteArrayList;

/** A server for HTTP and WebSockets that a test can make misbehave. */
abstract class RawServer implements Closeable {
    private static final String GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

    final ServerSocket listening;
    private final List<Socket> sockets = new CopyOnWriteArrayList<>();

    RawServer(ServerSocket listening) {
        this.listening = listening;
        start(this::accept);
    }

    static ServerSocket anyPort() throws IOException {
        return new ServerSocket(0, 50, InetAddress.getByName("127.0.0.1"));
    }

    private static void start(Runnable work) {
        Thread thread = new Thread(work, "test-server");
        thread.setDaemon(true);
        thread.start();
    }

    public String url() { return "ws://" + name(); }

    /** Returns host:port, as messages name the server. */
    public String name() { return "127.0.0.1:" + listening.getLocalPort(); }

    /** Serves one connection whose request has been read. */
    abstract void serve(Connection connection) throws Exception;

    private void accept() {
        while (!listening.isClosed()) {
            try {
                Socket socket = listening.accept();
                socket.setTcpNoDelay(true);
                sockets.add(socket);
                if (listening.isClosed()) {
                    cut(); // it came while the server was being closed
                    return;
                }
                start(() -> handle(socket));
            } catch (IOException error) {
                return;
            }
        }
    }

    private void handle(Socket socket) {
        try (socket) {
            serve(new Connection(socket));
        } catch (Exception error) {
            // the test sees the consequences
        }
    }

    /** Cuts all connections. */
    void cut() {
        for (Socket socket : sockets) {
            try {
                socket.close();
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        }
    }

    @Override
    public void close() throws IOException {
        listening.close();
        cut();
    }

    /** One connection: a request, and methods to answer it. */
    static final class Connection {
        final Socket socket;
        final DataInputStream in;
        final OutputStream out;
        final String request;
        final TreeMap<String, String> headers = new TreeMap<>();
        final byte[] body;

        Connection(Socket socket) throws IOException {
            this.socket = socket;
            in = new DataInputStream(new BufferedInputStream(socket.getInputStream()));
            out = socket.getOutputStream();
            request = line();
            for (String line = line(); !line.isEmpty(); line = line()) {
                int colon = line.indexOf(':');
                headers.put(line.substring(0, colon).toLowerCase(Locale.ROOT), line.substring(colon + 1).trim());
            }
            body = in.readNBytes(Integer.parseInt(headers.getOrDefault("content-length", "0")));
        }

        private String line() throws IOException {
            StringBuilder line = new StringBuilder();
            for (int c = in.readUnsignedByte(); c != '\n'; c = in.readUnsignedByte()) {
                line.append(c == '\r' ? "" : (char) c);
            }
            return line.toString();
        }

        void write(String text) throws IOException {
            out.write(text.getBytes(StandardCharsets.UTF_8));
        }

        void respond(String status, String header, byte[] content) throws IOException {
            write("HTTP/1.1 " + status + "\r\nConnection: close\r\nContent-Length: " + content.length
                    + "\r\n" + header + "\r\n");
            out.write(content);
        }

        void upgrade() throws Exception {
            upgrade(accept(), Wire.SUBPROTOCOL);
        }

        String accept() throws Exception {
            String key = headers.get("sec-websocket-key") + GUID;
            byte[] digest = MessageDigest.getInstance("SHA-1").digest(key.getBytes(StandardCharsets.UTF_8));
            return Base64.getEncoder().encodeToString(digest);
        }

        void upgrade(String accept, String protocol) throws IOException {
            write("HTTP/1.1 101 Switching Protocols\r\nUpgrade: WebSocket\r\nconnection: upgrade\r\n"
                    + "SEC-WebSocket-Accept: " + accept + "\r\nSec-WebSocket-Protocol: " + protocol + "\r\n\r\n");
        }

        /** Sends a frame as servers do: not masked, its length in as few bytes as possible. */
        void send(int first, byte[] payload) throws IOException {
            FrameWriter frame = new FrameWriter();
            frame.u8(first);
            int n = payload.length;
            frame.u8(n < 126 ? n : n < 1 << 16 ? 126 : 127);
            for (int shift = n < 126 ? -8 : n < 1 << 16 ? 8 : 56; shift >= 0; shift -= 8) {
                frame.u8((int) ((long) n >>> shift) & 0xFF);
            }
            frame.raw(payload);
            out.write(frame.bytes());
        }

        /** Returns the device's next frame: its opcode, then the payload. Throws if it is not masked. */
        byte[] receive() throws IOException {
            int first = in.readUnsignedByte();
            int second = in.readUnsignedByte();
            if ((second & 0x80) == 0 || (first & 0x70) != 0) {
                throw new IOException("a device masks its frames and extends none");
            }
            long n = second & 0x7F;
            n = n == 126 ? in.readUnsignedShort() : n == 127 ? in.readLong() : n;
            byte[] mask = in.readNBytes(4);
            byte[] found = new byte[(int) n + 1];
            in.readFully(found, 1, (int) n);
            for (int i = 0; i < n; i++) {
                found[i + 1] ^= mask[i & 3];
            }
            found[0] = (byte) (first & 0x0F);
            return found;
        }
    }
}
