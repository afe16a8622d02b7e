package edgespec;

import java.io.BufferedInputStream;
import java.io.Closeable;
import java.io.DataInputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Locale;
import java.util.TreeMap;

/** A server for HTTP and WebSockets that a test can make misbehave. */
abstract class RawServer implements Closeable {
    private static final String GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

    final ServerSocket listening;
    private final List<Socket> sockets = Collections.synchronizedList(new ArrayList<Socket>());

    RawServer(ServerSocket listening) {
        this.listening = listening;
        Thread thread = new Thread("test-server") {
            @Override
            public void run() {
                accept();
            }
        };
        thread.setDaemon(true);
        thread.start();
    }

    static ServerSocket anyPort() throws IOException {
        return new ServerSocket(0, 50, InetAddress.getByName("127.0.0.1"));
    }

    int port() {
        return listening.getLocalPort();
    }

    String url() {
        return "ws://127.0.0.1:" + port();
    }

    /** Serves one connection whose request has been read. */
    abstract void serve(Connection connection) throws Exception;

    private void accept() {
        while (!listening.isClosed()) {
            try {
                final Socket socket = listening.accept();
                socket.setTcpNoDelay(true);
                sockets.add(socket);
                if (listening.isClosed()) {
                    cut(); // it came while the server was being closed
                    return;
                }
                Thread thread = new Thread("test-connection") {
                    @Override
                    public void run() {
                        handle(socket);
                    }
                };
                thread.setDaemon(true);
                thread.start();
            } catch (IOException error) {
                return;
            }
        }
    }

    private void handle(Socket socket) {
        try {
            serve(new Connection(socket));
        } catch (Exception error) {
            // the test sees the consequences
        } finally {
            cut(socket);
        }
    }

    /** Cuts all connections. */
    void cut() {
        for (Socket socket : new ArrayList<Socket>(sockets)) {
            cut(socket);
        }
        sockets.clear();
    }

    private static void cut(Socket socket) {
        try {
            socket.close();
        } catch (IOException error) {
            // it is closed already
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
        final TreeMap<String, String> headers = new TreeMap<String, String>();
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
            String length = headers.get("content-length");
            body = new byte[length == null ? 0 : Integer.parseInt(length)];
            in.readFully(body);
        }

        private String line() throws IOException {
            StringBuilder line = new StringBuilder();
            for (int c = in.readUnsignedByte(); c != '\n'; c = in.readUnsignedByte()) {
                if (c != '\r') {
                    line.append((char) c);
                }
            }
            return line.toString();
        }

        void write(String text) throws IOException {
            out.write(text.getBytes("UTF-8"));
        }

        void respond(String status, String header, byte[] content) throws IOException {
            write("HTTP/1.1 " + status + "\r\nConnection: close\r\nContent-Length: " + content.length
                    + "\r\n" + header + "\r\n");
            out.write(content);
        }

        String accept() throws Exception {
            MessageDigest sha1 = MessageDigest.getInstance("SHA-1");
            String key = headers.get("sec-websocket-key") + GUID;
            return java.util.Base64.getEncoder().encodeToString(sha1.digest(key.getBytes("UTF-8")));
        }

        void upgrade() throws Exception {
            upgrade(accept(), Wire.SUBPROTOCOL);
        }

        void upgrade(String accept, String protocol) throws IOException {
            write("HTTP/1.1 101 Switching Protocols\r\nUpgrade: WebSocket\r\nconnection: upgrade\r\n"
                    + "SEC-WebSocket-Accept: " + accept + "\r\nSec-WebSocket-Protocol: " + protocol + "\r\n\r\n");
        }

        /** Sends a frame as servers do: not masked, its length in as few bytes as possible. */
        void send(int first, byte[] payload) throws IOException {
            FrameWriter frame = new FrameWriter();
            frame.u8(first);
            if (payload.length < 126) {
                frame.u8(payload.length);
            } else if (payload.length < 1 << 16) {
                frame.u8(126);
                frame.u8(payload.length >> 8);
                frame.u8(payload.length & 0xFF);
            } else {
                frame.u8(127);
                for (int shift = 56; shift >= 0; shift -= 8) {
                    frame.u8((int) ((long) payload.length >>> shift) & 0xFF);
                }
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
            byte[] mask = new byte[4];
            in.readFully(mask);
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
