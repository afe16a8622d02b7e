package edgespec;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;

import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import org.junit.Test;

/** Tests where an answer ends and which text is shown, with tokens of one byte each. */
public class OutputTest {
    private final Recorder heard = new Recorder();

    private static Output output(int maxTokens, String... stops) {
        Output output = new Output(maxTokens, Arrays.asList(stops));
        output.useVocabulary(new Toy(), false);
        return output;
    }

    private static int[] tokens(String text) {
        byte[] bytes = text.getBytes(FrameWriter.UTF_8);
        int[] found = new int[bytes.length];
        for (int i = 0; i < bytes.length; i++) {
            found[i] = bytes[i] & 0xFF;
        }
        return found;
    }

    @Test
    public void charactersAreShownWhole() {
        Output output = output(100);
        output.cut(tokens("a\u00e9\u4f60\ud83d\ude00z"), 0, heard);
        List<String> expected = Arrays.asList("a", "\u00e9", "\u4f60", "\ud83d\ude00", "z");
        assertEquals(expected, heard.pieces);
    }

    @Test
    public void bytesThatAreNoCharacter() {
        Output output = output(100);
        output.cut(new int[] {'a', 0xC3, 'b', 0xFF, 'c', 0xE4, 0xBD}, 0, heard);
        assertEquals("a\ufffdb\ufffdc", output.text());
        output.flush(heard);
        assertEquals("a\ufffdb\ufffdc\ufffd", output.text());
        assertEquals(output.text(), heard.text.toString());
    }

    @Test
    public void anEndInsideADraft() {
        Output output = output(100);
        assertArrayEquals(new int[] {'a', Toy.END}, output.cut(new int[] {'a', Toy.END, 'b', 'c'}, 3, heard));
        assertEquals("stop", output.finishReason());
        assertEquals("a", output.text());
        assertEquals(2, output.size());
    }

    @Test
    public void theLastTokenInsideADraft() {
        Output output = output(3);
        assertEquals(3, output.cut(tokens("abcdef"), 5, heard).length);
        assertEquals("length", output.finishReason());
        assertEquals("abc", output.text());
        assertEquals(3, heard.drafted);
    }

    @Test
    public void aStopStringBeginsInOneDraftAndEndsInAnother() {
        Output output = output(100, "STOP", "\n\n");
        output.cut(tokens("oneST"), 4, heard);
        assertEquals("one", output.text());
        output.cut(tokens("ST"), 1, heard);
        assertEquals("oneST", output.text());
        assertEquals(2, output.cut(tokens("OP and more"), 10, heard).length);
        assertEquals("stop", output.finishReason());
        output.flush(heard);
        assertEquals("oneST", heard.text.toString());
    }

    @Test
    public void theFirstOfTwoStopStrings() {
        Output output = output(100, "c", "bcd");
        output.cut(tokens("abcd"), 0, heard);
        assertEquals("ab", output.text());
    }

    @Test
    public void whatIsHeldIsShownAtTheEnd() {
        Output output = output(100, "STOP");
        output.cut(tokens("xST"), 0, heard);
        assertEquals("x", output.text());
        assertEquals("xST", output.allText());
        output.finish("cancelled");
        output.finish("error");
        output.flush(heard);
        assertEquals("xST", output.text());
        assertEquals("the first reason stays", "cancelled", output.finishReason());
    }

    @Test
    public void halfACharacterGoesOnInTheSameVocabularyOnly() {
        for (boolean same : new boolean[] {true, false}) {
            Output output = output(100);
            output.cut(new int[] {'a', 0xC3}, 0, heard);
            output.useVocabulary(new Toy(), same);
            output.cut(new int[] {same ? 0xA9 : 'b'}, 0, heard);
            assertEquals(same ? "a\u00e9" : "ab", output.text());
        }
    }

    @Test
    public void nothingSaid() {
        Output output = new Output(10, Collections.<String>emptyList());
        output.flush(heard);
        assertEquals("", output.text());
    }

    @Test
    public void piecesAreTheLongestThatFit() {
        Vocabulary vocabulary = new Vocabulary() {
            @Override
            public byte[] piece(int id) {
                return new String[] {"", "a", "ab", "abc", "b", "d"}[id].getBytes(FrameWriter.UTF_8);
            }

            @Override
            public boolean isEnd(int id) {
                return false;
            }
        };
        assertArrayEquals(new int[] {3, 5, 2, 1}, new PieceTokenizer(vocabulary, 6).encode("abcdab?a"));
        assertEquals(0, new PieceTokenizer(vocabulary, 6).encode("").length);
    }
}
