package edgespec;

import java.io.IOException;
import java.util.List;

/** The toy target as a model on the device, which can make mistakes or fail. */
final class ToyModel implements Model {
    private final IntList tokens = new IntList();
    private final int contextSize;
    private final int wrongEvery;
    byte[] hash = Toy.hash();
    int failAfter = Integer.MAX_VALUE;
    int decoded;
    int largest;

    /** @param wrongEvery the token after every multiple of this many tokens is wrong; 0 for none */
    ToyModel(int contextSize, int wrongEvery) {
        this.contextSize = contextSize;
        this.wrongEvery = wrongEvery;
    }

    @Override
    public byte[] vocabularyHash() {
        return hash;
    }

    @Override
    public int contextSize() {
        return contextSize;
    }

    int nPast() {
        return tokens.size();
    }

    @Override
    public int[] decode(int[] added, int nRows) throws IOException {
        if (decoded++ >= failAfter) {
            throw new IOException("the engine says no");
        }
        if (tokens.size() + added.length > contextSize || added.length == 0) {
            throw new IOException(added.length + " tokens after " + tokens.size() + " of " + contextSize);
        }
        tokens.addAll(added);
        largest = Math.max(largest, added.length);
        int[] rows = new int[nRows];
        for (int i = 0; i < nRows; i++) {
            int length = tokens.size() - nRows + 1 + i;
            boolean wrong = wrongEvery > 0 && length % wrongEvery == 0;
            rows[i] = wrong ? '?' : Toy.next(tokens, length, Toy::answer);
        }
        return rows;
    }

    @Override
    public void truncate(int nPast) {
        tokens.truncate(nPast);
    }

    @Override
    public int[] encode(String text) {
        return Toy.bytes(text);
    }

    @Override
    public int[] encodeChat(List<Message> messages) {
        return Toy.encode(messages);
    }

    @Override
    public byte[] piece(int id) {
        return new Toy().piece(id);
    }

    @Override
    public boolean isEnd(int id) {
        return id == Toy.END;
    }

    @Override
    public void close() {}
}
