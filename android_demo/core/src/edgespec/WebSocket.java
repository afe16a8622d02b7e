package edgespec;

import java.io.BufferedInputStream;
import java.io.ByteArrayOutputStream;
import java.io.Closeable;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.EOFException;
import java.io.IOException;
import java.io.OutputStream;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.security.SecureRandom;
import java.util.HashMap;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import javax.net.ssl.SSLParameters;
import javax.net.ssl.SSLSocket;
import javax.net.ssl.SSLSocketFactory;

/**
 * A WebSocket client (RFC 6455) for binary messages, without extensions. A separate thread reads, so
 * that pings are answered while nobody receives. One thread at a time may send and receive; any thread
 * may call {@link #close} and {@link #drop}.
 */
final class WebSocket implements Closeable {
    /** Most bytes of a message; the server's frames are much smaller. */
    static final int MAX_MESSAGE = 1 << 22;

    private static final String GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
    private static final int MAX_HEADER = 8192;
    private static final int MAX_WAITING = 256;
    private static final int CONTINUATION = 0;
    private static final int TEXT = 1;
    private static final int BINARY = 2;
    private static final int CLOSE = 8;
    private static final int PING = 9;
    private static final int PONG = 10;
    /** Stands in the queue of messages for the end of the connection. */
    private static final byte[] END = {};

    private final Socket socket;
    private final DataInputStream in;
    private final OutputStream out;
    private final SecureRandom random = new SecureRandom();
    private final LinkedBlockingQueue<byte[]> arrived = new LinkedBlockingQueue<byte[]>(MAX_WAITING);
    private volatile VerifierException failure;
    private volatile boolean closing;
    private volatile Thread reader;

    private WebSocket(Socket socket) throws IOException {
        this.socket = socket;
        this.in = new DataInputStream(new BufferedInputStream(socket.getInputStream()));
        this.out = socket.getOutputStream();
    }

    /**
     * Connects and does the handshake.
     *
     * @param key the bearer token, "" for none
     * @param factory makes TLS sockets; used for a secure address only
     * @throws VerifierException.Unavailable if no server answers, or it is busy
     * @throws VerifierException.Refused if the key is wrong, or it is no verification server
     */
    static WebSocket connect(Address address, String key, int timeoutMs, SSLSocketFactory factory)
            throws VerifierException {
        Socket socket = new Socket();
        try {
            socket.connect(new InetSocketAddress(address.bareHost(), address.port), timeoutMs);
            socket.setTcpNoDelay(true);
            socket.setSoTimeout(timeoutMs);
            if (address.secure) {
                socket = withTls(socket, address, factory);
            }
            WebSocket found = new WebSocket(socket);
            found.shakeHands(address, key);
            socket.setSoTimeout(0);
            found.startReading();
            return found;
        } catch (VerifierException error) {
            closeQuietly(socket);
            throw error;
        } catch (IOException error) {
            closeQuietly(socket);
            throw new VerifierException.Unavailable(
                    "no verification server answers at " + address + ": " + VerifierException.reason(error));
        }
    }

    /** Wraps a socket in TLS and checks that the certificate is valid for the host's name. */
    private static Socket withTls(Socket plain, Address address, SSLSocketFactory factory)
            throws IOException {
        SSLSocket socket = (SSLSocket) factory.createSocket(plain, address.bareHost(), address.port, true);
        SSLParameters parameters = socket.getSSLParameters();
        try { // by reflection: Android 7 has this method, the older classes used for building do not
            SSLParameters.class.getMethod("setEndpointIdentificationAlgorithm", String.class)
                    .invoke(parameters, "HTTPS");
        } catch (ReflectiveOperationException error) {
            throw new IOException("this device cannot check the name in a certificate", error);
        }
        socket.setSSLParameters(parameters);
        socket.startHandshake();
        return socket;
    }

    private void shakeHands(Address address, String key) throws IOException {
        byte[] nonce = new byte[16];
        random.nextBytes(nonce);
        String challenge = Base64.encode(nonce);
        StringBuilder asked = new StringBuilder("GET " + address.prefix + Wire.PATH + " HTTP/1.1\r\n");
        asked.append("Host: ").append(address).append("\r\n");
        asked.append("Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n");
        asked.append("Sec-WebSocket-Key: ").append(challenge).append("\r\n");
        asked.append("Sec-WebSocket-Protocol: ").append(Wire.SUBPROTOCOL).append("\r\n");
        if (!key.isEmpty()) {
            asked.append("Authorization: Bearer ").append(key).append("\r\n");
        }
        out.write(asked.append("\r\n").toString().getBytes(StandardCharsets.UTF_8));
        out.flush();
        check(address, challenge);
    }

    private void check(Address address, String challenge) throws IOException {
        String[] status = line().split(" ");
        Map<String, String> headers = new HashMap<String, String>();
        int left = MAX_HEADER;
        for (String line = line(); !line.isEmpty(); line = line()) {
            left -= line.length();
            if (left < 0) {
                throw new ProtocolException(address + " answers with headers without end");
            }
            int colon = line.indexOf(':');
            if (colon > 0) {
                headers.put(line.substring(0, colon).toLowerCase(Locale.ROOT), line.substring(colon + 1).trim());
            }
        }
        if (status.length < 2 || !status[0].startsWith("HTTP/1.")) {
            throw new VerifierException.Refused(address + " does not speak HTTP");
        }
        if (!status[1].equals("101")) {
            throw httpError(address, status[1]);
        }
        boolean accepted = accepted(challenge).equals(headers.get("sec-websocket-accept"));
        if (!accepted || !"websocket".equalsIgnoreCase(headers.get("upgrade"))) {
            throw new ProtocolException(address + " answers the handshake of a WebSocket wrongly");
        }
        if (!Wire.SUBPROTOCOL.equals(headers.get("sec-websocket-protocol"))) {
            throw new VerifierException.Refused(address + " does not speak " + Wire.SUBPROTOCOL);
        }
    }

    /** Returns the error that an HTTP status stands for, on the handshake and on the other routes. */
    static VerifierException httpError(Address address, String status) {
        if (status.equals("401") || status.equals("403")) {
            return new VerifierException.Refused(address + " refuses the key; give one that it knows");
        }
        if (status.equals("429") || status.startsWith("5")) {
            return new VerifierException.Unavailable(address + " has no room now (HTTP " + status + ")");
        }
        return new VerifierException.Refused(
                address + " is no verification server: it answered with HTTP " + status);
    }

    private static String accepted(String challenge) {
        try {
            MessageDigest sha1 = MessageDigest.getInstance("SHA-1");
            return Base64.encode(sha1.digest((challenge + GUID).getBytes(StandardCharsets.UTF_8)));
        } catch (NoSuchAlgorithmException error) {
            throw new AssertionError("every Java and every Android has SHA-1: " + error);
        }
    }

    private String line() throws IOException {
        StringBuilder line = new StringBuilder();
        for (int c = in.read(); c != '\n'; c = in.read()) {
            if (c < 0) {
                throw new EOFException("the connection ended during the handshake");
            }
            if (line.length() == MAX_HEADER) {
                throw new ProtocolException("a header of the handshake is longer than " + MAX_HEADER);
            }
            if (c != '\r') {
                line.append((char) c);
            }
        }
        return line.toString();
    }

    /** Sends one binary message. */
    void send(byte[] message) throws VerifierException {
        try {
            write(BINARY, message);
        } catch (IOException error) {
            fail(new VerifierException.Unavailable("the connection is lost: " + VerifierException.reason(error)));
            throw failure;
        }
    }

    /**
     * Returns the next message, or null if none has arrived after timeoutMs milliseconds. Messages that
     * arrived before the connection was lost are still returned.
     */
    byte[] receive(long timeoutMs) throws VerifierException {
        byte[] message;
        try {
            message = arrived.poll(timeoutMs, TimeUnit.MILLISECONDS);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            throw new VerifierException.Cancelled();
        }
        if (message == END) {
            arrived.offer(END);
            throw failure;
        }
        return message;
    }

    /** Returns true if receive would not wait. */
    boolean ready() { return !arrived.isEmpty(); }

    /** Sends a CLOSE frame, so that the server deletes the session, and ends the connection. */
    @Override
    public void close() {
        if (!closing) {
            closing = true;
            try {
                socket.setSoTimeout(1000);
                write(CLOSE, new byte[] {1000 >> 8, (byte) 1000});
                socket.shutdownOutput();
            } catch (IOException | UnsupportedOperationException error) {
                // it is lost already, or a TLS socket of an old Android, which cannot be half-closed
            }
        }
        drop();
    }

    /** Cuts the connection without a CLOSE frame, so that the session can be resumed. */
    void drop() {
        closeQuietly(socket);
        reader.interrupt();
    }

    private synchronized void write(int opcode, byte[] payload) throws IOException {
        int n = payload.length;
        ByteArrayOutputStream bytes = new ByteArrayOutputStream(n + 14);
        DataOutputStream frame = new DataOutputStream(bytes);
        frame.writeByte(0x80 | opcode);
        frame.writeByte(0x80 | (n < 126 ? n : n < 1 << 16 ? 126 : 127));
        if (n >= 1 << 16) {
            frame.writeLong(n);
        } else if (n >= 126) {
            frame.writeShort(n);
        }
        byte[] mask = new byte[4];
        random.nextBytes(mask);
        frame.write(mask);
        for (int i = 0; i < n; i++) {
            frame.writeByte(payload[i] ^ mask[i & 3]);
        }
        bytes.writeTo(out);
        out.flush();
    }

    // The thread that reads

    private void startReading() {
        reader = new Thread("edgespec-websocket") {
            @Override
            public void run() {
                read();
            }
        };
        reader.setDaemon(true);
        reader.start();
    }

    private void read() {
        try {
            while (true) {
                arrived.put(message());
            }
        } catch (VerifierException error) {
            fail(error);
        } catch (IOException error) {
            fail(new VerifierException.Unavailable("the connection is lost: " + VerifierException.reason(error)));
        } catch (InterruptedException error) {
            fail(new VerifierException.Unavailable("the connection was given up"));
        }
    }

    /** Reads the next message, joined from its fragments; answers control frames meanwhile. */
    private byte[] message() throws IOException {
        FrameWriter parts = null;
        int length = 0;
        while (true) {
            int first = in.readUnsignedByte();
            byte[] payload = payload(first, length);
            int opcode = first & 0x0F;
            if (opcode == PING) {
                write(PONG, payload);
            } else if (opcode == CLOSE) {
                if (!closing) {
                    closing = true;
                    write(CLOSE, payload);
                }
                throw new VerifierException.Unavailable("the server closed the connection");
            } else if (opcode == TEXT) {
                throw new ProtocolException("a text message came; frames are binary");
            } else if (opcode == BINARY || opcode == CONTINUATION) {
                if ((opcode == BINARY) != (parts == null)) {
                    throw new ProtocolException("the fragments of a message came in a wrong order");
                }
                parts = parts == null ? new FrameWriter() : parts;
                parts.raw(payload);
                length += payload.length;
                if ((first & 0x80) != 0) {
                    return parts.bytes();
                }
            } else if (opcode != PONG) {
                throw new ProtocolException("a WebSocket frame of unknown kind " + opcode + " came");
            }
        }
    }

    private byte[] payload(int first, int before) throws IOException {
        int second = in.readUnsignedByte();
        long n = second & 0x7F;
        boolean control = (first & 0x08) != 0;
        if ((first & 0x70) != 0 || (second & 0x80) != 0) {
            throw new ProtocolException("the server sent a WebSocket frame that is masked or extended");
        }
        if (control && (n > 125 || (first & 0x80) == 0)) {
            throw new ProtocolException("a control frame is longer than 125 bytes or in fragments");
        }
        if (n == 126) {
            n = in.readUnsignedShort();
        } else if (n == 127) {
            n = in.readLong();
        }
        if (n < 0 || n > MAX_MESSAGE - (control ? 0 : before)) {
            throw new ProtocolException("a message is larger than the " + MAX_MESSAGE + " bytes allowed");
        }
        byte[] payload = new byte[(int) n];
        in.readFully(payload);
        return payload;
    }

    private void fail(VerifierException error) {
        if (failure == null) {
            failure = error;
        }
        closeQuietly(socket);
        while (!arrived.offer(END)) {
            arrived.poll(); // the queue is full and nobody reads it: make space for END
        }
    }

    private static void closeQuietly(Socket socket) {
        try {
            socket.close();
        } catch (IOException error) {
            // there is nothing left to do with the socket
        }
    }
}
