package edgespec.app;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertNotSame;
import static org.junit.Assert.assertTrue;

import android.view.View;
import android.widget.EditText;
import android.widget.ScrollView;
import android.widget.TextView;
import edgespec.ScriptedServer;
import java.io.File;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import org.junit.After;
import org.junit.Before;
import org.junit.Rule;
import org.junit.Test;
import org.junit.rules.TemporaryFolder;

/** Tests the unmodified app on a {@link Phone} made of fakes, with a server on this machine. */
public class ChatActivityTest {
    private static final int ALL = 1000;
    private static final String KEY = "sk-test-1234";
    private static final String QUESTION = "Say it twice";
    private static final String ANSWER = "The lamp is red. The lamp is on. The lamp is red. The lamp is on. Done";

    @Rule
    public final TemporaryFolder folder = new TemporaryFolder();

    private ScriptedServer server;
    private Phone phone;

    @Before
    public void start() throws IOException {
        server = new ScriptedServer(KEY, QUESTION, ANSWER, "And now?", "Now it is green.");
        phone = new Phone(new File("app/res"), folder.getRoot());
        View.fakeAnnounced.clear();
        phone.launch();
    }

    @After
    public void stop() throws IOException {
        server.close();
    }

    private void untilShown(final String part) {
        phone.until("\"" + part + "\" is shown", new Phone.Condition() {
            @Override
            public boolean holds() {
                return phone.shows(part);
            }
        });
    }

    private void untilIdle() {
        untilEnded();
        phone.until("the screen knows that no answer is coming", new Phone.Condition() {
            @Override
            public boolean holds() {
                return phone.text(R.id.send).equals("Send");
            }
        });
    }

    /** Waits until the answer has ended, even if no screen shows it. */
    private void untilEnded() {
        phone.until("no answer is coming", new Phone.Condition() {
            @Override
            public boolean holds() {
                return !phone.app.conversation.isAnswering();
            }
        });
    }

    /** Sends the question and waits until this much of the answer is on the screen. */
    private void begin(int verdicts, String shown) {
        phone.setServer(server.address(), KEY);
        server.allow(verdicts);
        phone.ask(QUESTION);
        untilShown(shown);
    }

    private void finish() {
        server.allow(ALL);
        untilIdle();
        assertTrue(phone.texts().toString(), phone.shows(ANSWER));
    }

    // Sending and streaming

    @Test
    public void anAnswerStreams() {
        assertTrue(phone.shows("Ask something"));
        assertEquals("Send", phone.text(R.id.send));
        begin(2, "The lamp");
        assertFalse(phone.shows("Done"));
        assertEquals("the line is empty for the next question", "", phone.text(R.id.message));
        assertEquals("Stop", phone.text(R.id.send));
        finish();
        assertEquals("Send", phone.text(R.id.send));
        assertFalse("nothing else is said", phone.shows("Stopped"));
    }

    @Test
    public void theFiguresAreThoseOfTheAnswer() {
        assertEquals("No answer yet", phone.text(R.id.figures));
        begin(ALL, "Done");
        untilIdle();
        String figures = phone.text(R.id.figures);
        assertTrue(figures, figures.matches(
                "[0-9.]+ tokens/s · [0-9]+% of [1-9][0-9]* drafted tokens accepted · round trip [0-9]+ ms"));
    }

    @Test
    public void acceptedDraftsHaveAnotherShadeOnDemand() {
        begin(ALL, "Done");
        untilIdle();
        assertEquals("", shaded());
        phone.menu(R.id.show_drafts);
        String first = shaded();
        assertTrue("what is said twice is drafted: " + first, first.contains("lamp is"));
        assertFalse("what nobody could know is not: " + first, first.contains("Done"));
        phone.rotate();
        assertEquals("the choice is kept", first, shaded());
        phone.menu(R.id.show_drafts);
        assertEquals("", shaded());
    }

    /** Returns the text that is coloured as accepted drafts. */
    private String shaded() {
        StringBuilder text = new StringBuilder();
        for (View view : phone.views()) {
            CharSequence content = view instanceof TextView ? ((TextView) view).getText() : "";
            if (content instanceof android.text.SpannableString) {
                for (int[] shade : ((android.text.SpannableString) content).fakeShades()) {
                    assertEquals(phone.app.getColor(R.color.accepted), shade[2]);
                    text.append(content.toString(), shade[0], shade[1]);
                }
            }
        }
        return text.toString();
    }

    @Test
    public void theNextQuestionGoesOnWithTheConversation() {
        begin(ALL, "Done");
        untilIdle();
        phone.ask("And now?");
        untilShown("Now it is green.");
        untilIdle();
        assertEquals("user: " + QUESTION + "\nassistant: " + ANSWER + "\nuser: And now?\n",
                server.questions().get(1));
    }

    @Test
    public void theEndIsFollowedUnlessSomebodyReadsAbove() {
        begin(ALL, "Done");
        untilIdle();
        for (int i = 0; i < 4; i++) {
            phone.ask(QUESTION);
            untilIdle();
        }
        ScrollView scroll = null;
        for (View view : phone.views()) {
            scroll = view instanceof ScrollView ? (ScrollView) view : scroll;
        }
        int end = phone.find(R.id.entries).getHeight() - scroll.getHeight();
        assertTrue("there is more than fits", end > 0);
        assertEquals(end, scroll.getScrollY());
        server.allowOnly(2);
        phone.ask("And now?");
        untilShown("Now it");
        scroll.scrollTo(0, 10);
        server.allow(ALL);
        untilShown("Now it is green.");
        untilIdle();
        assertEquals(10, scroll.getScrollY());
    }

    @Test
    public void nothingIsSentWithoutAQuestion() {
        phone.ask("   ");
        assertFalse(phone.app.conversation.isAnswering());
        assertTrue(phone.shows("Ask something"));
    }

    @Test
    public void aNewConversationForgetsTheOld() {
        begin(2, "The lamp");
        phone.menu(R.id.new_conversation);
        untilShown("Ask something");
        assertFalse(phone.shows("lamp"));
        server.allow(ALL);
        phone.ask("And now?");
        untilShown("Now it is green.");
        untilIdle();
        assertFalse(phone.shows("lamp"));
        assertEquals("user: And now?\n", server.questions().get(server.questions().size() - 1));
        assertFalse(phone.app.fakeServices.contains("AnswerService"));
    }

    // Stopping

    @Test
    public void stopKeepsWhatWasSaid() {
        begin(2, "The lamp");
        phone.touch(R.id.send);
        untilIdle();
        assertTrue(phone.shows("The lamp"));
        assertTrue(phone.shows("Stopped."));
        assertEquals("Send", phone.text(R.id.send));
        server.allow(ALL);
        phone.ask("And now?");
        untilShown("Now it is green.");
        untilIdle();
        assertEquals("it was not waited for until it counted as lost", 1, server.connections());
    }

    // Rotation, background, the end of the process

    @Test
    public void turningThePhoneLosesNothing() {
        begin(2, "The lamp");
        phone.write(R.id.message, "half a quest");
        ChatActivity before = phone.activity;
        phone.rotate();
        assertNotSame(before, phone.activity);
        assertTrue(phone.shows(QUESTION));
        assertTrue(phone.shows("The lamp"));
        assertEquals("Stop", phone.text(R.id.send));
        assertEquals("half a quest", phone.text(R.id.message));
        finish();
    }

    @Test
    public void theAnswerGoesOnInTheBackground() {
        begin(2, "The lamp");
        assertTrue(phone.app.fakeServices.contains("AnswerService"));
        phone.leave();
        server.allow(ALL);
        untilEnded();
        assertFalse("nobody draws on a screen that is not seen", phone.shows("Done"));
        assertFalse("the service ends with the answer", phone.app.fakeServices.contains("AnswerService"));
        phone.comeBack();
        assertTrue(phone.shows(ANSWER));
    }

    @Test
    public void aConversationOutlivesTheProcess() {
        begin(ALL, "Done");
        untilIdle();
        phone.menu(R.id.show_drafts);
        String drafted = shaded();
        phone.leave();
        phone.endProcess();
        phone.launch();
        assertTrue(phone.shows(QUESTION));
        assertTrue(phone.shows(ANSWER));
        assertEquals(drafted, shaded());
        phone.ask("And now?");
        untilShown("Now it is green.");
        untilIdle();
        assertEquals("user: " + QUESTION + "\nassistant: " + ANSWER + "\nuser: And now?\n",
                server.questions().get(1));
    }

    @Test
    public void anInterruptedAnswerIsKeptAndSaid() {
        begin(2, "The lamp");
        phone.leave();
        phone.endProcess();
        phone.launch();
        assertTrue(phone.shows("The lamp"));
        assertTrue(phone.shows("Android ended the app before this answer was complete."));
        assertEquals("Send", phone.text(R.id.send));
    }

    @Test
    public void aDamagedFileIsSaidAndDoesNoHarm() throws IOException {
        byte[][] damaged = {
            {}, {2, 0, 0, 0, 0, 0}, {1, 0, 0, 0, 0, 9, 1}, {1, 0, 0, 0, 0, 1, 1, 127, -1, -1, -1},
        };
        for (byte[] bytes : damaged) {
            Files.write(new File(folder.getRoot(), "conversation").toPath(), bytes);
            phone.endProcess();
            phone.launch();
            assertTrue(phone.shows("The saved conversation could not be read"));
        }
        begin(ALL, "Done");
    }

    @Test
    public void aFullDiskIsSaidOnceAndTheAnswerComes() throws IOException {
        assertTrue(new File(folder.getRoot(), "conversation.new").mkdir());
        begin(2, "The lamp");
        phone.leave();
        phone.comeBack();
        finish();
        phone.leave();
        phone.comeBack();
        int said = 0;
        for (String text : phone.texts()) {
            said += text.contains("could not be saved") ? 1 : 0;
        }
        assertEquals(1, said);
    }

    // Errors

    @Test
    public void withoutServerAndModelItSaysWhatToDo() {
        phone.ask(QUESTION);
        untilShown("in the settings");
        untilIdle();
        assertTrue(phone.shows(QUESTION));
    }

    @Test
    public void aServerThatIsNotThereIsNamed() throws IOException {
        server.close();
        phone.setServer(server.address(), KEY);
        phone.ask(QUESTION);
        untilShown(server.name());
        untilIdle();
        assertTrue(phone.shows("No answer yet"));
    }

    @Test
    public void aWrongKeyIsSaidWithoutTheKey() {
        phone.setServer(server.address(), "sk-wrong");
        phone.ask(QUESTION);
        untilShown("key");
        untilIdle();
        assertFalse(phone.shows("sk-wrong"));
        phone.setServer(server.address(), KEY);
        server.allow(ALL);
        phone.ask(QUESTION);
        untilShown(ANSWER);
        untilIdle();
    }

    @Test
    public void aServerThatDiesLeavesWhatItSaid() throws IOException {
        begin(3, "The lamp is");
        server.close();
        untilIdle();
        assertTrue(phone.shows("The lamp is"));
        assertTrue(phone.texts().toString(), phone.shows(server.name()));
        try (ScriptedServer again = server.again("And now?", "Now it is green.")) {
            again.allow(ALL);
            phone.ask("And now?");
            untilShown("Now it is green.");
            untilIdle();
        }
    }

    // Settings

    @Test
    public void settingsAreKept() {
        phone.setServer(server.address(), KEY);
        phone.leave();
        phone.endProcess();
        phone.launch();
        phone.menu(R.id.settings);
        assertEquals(server.address(), phone.text(R.id.server));
        assertEquals(KEY, phone.text(R.id.key));
        assertTrue("the key is not read over a shoulder", ((EditText) phone.find(R.id.key)).fakeIsPassword());
    }

    @Test
    public void backLeavesTheSettingsAsTheyWere() {
        phone.setServer(server.address(), KEY);
        phone.menu(R.id.settings);
        phone.write(R.id.server, "wss://elsewhere:1");
        phone.activity.onBackPressed();
        assertFalse(phone.activity.fakeFinished);
        assertEquals("edgespec demo", phone.activity.fakeTitle);
        phone.menu(R.id.settings);
        assertEquals(server.address(), phone.text(R.id.server));
        phone.activity.onBackPressed();
        phone.activity.onBackPressed();
        assertTrue("from the conversation back leaves the app", phone.activity.fakeFinished);
    }

    @Test
    public void halfWrittenSettingsSurviveTurning() {
        phone.menu(R.id.settings);
        phone.write(R.id.server, "wss://my-comp");
        phone.tick(R.id.cleartext, true);
        phone.rotate();
        assertEquals("Settings", phone.activity.fakeTitle);
        assertEquals("wss://my-comp", phone.text(R.id.server));
        phone.touch(R.id.save);
        assertEquals("edgespec demo", phone.activity.fakeTitle);
        phone.menu(R.id.settings);
        assertEquals("wss://my-comp", phone.text(R.id.server));
    }

    @Test
    public void anUnencryptedConnectionIsTheUsersChoice() {
        phone.setServer("ws://192.168.1.20:8080", KEY);
        assertEquals("Settings", phone.activity.fakeTitle);
        assertTrue(phone.text(R.id.refusal), phone.text(R.id.refusal).contains("would not be encrypted"));
        assertEquals("", Choices.load(phone.activity.getSharedPreferences("settings", 0)).server);
        phone.tick(R.id.cleartext, true);
        phone.touch(R.id.save);
        assertEquals("edgespec demo", phone.activity.fakeTitle);
        assertTrue(Choices.load(phone.activity.getSharedPreferences("settings", 0)).cleartext);
    }

    @Test
    public void addresses() {
        for (String good : new String[] {"", "wss://big:8080", "https://big", "ws://127.0.0.1:8080",
            "ws://localhost:8080", "ws://[::1]:8080", "WSS://big:8080/v1/verify", " wss://big "}) {
            assertEquals(good, null, new Choices(good, "", false, "").refusal());
        }
        for (String bad : new String[] {"big:8080", "192.168.1.20:8080", "ftp://big", "ws://big:8080",
            "http://big", "ws://127.0.0.1.evil.org", "ws://localhost.evil.org", "wss://", "wss://a b"}) {
            String refusal = new Choices(bad, "", false, "").refusal();
            assertTrue(bad, refusal != null && refusal.endsWith("."));
        }
    }

    // The model on the phone

    @Test
    public void aPickedModelIsCopied() throws IOException {
        File picked = folder.newFile("some.gguf");
        byte[] content = new byte[3000000];
        content[0] = 'G';
        content[1] = 'G';
        content[2] = 'U';
        content[3] = 'F';
        content[2999999] = 7;
        Files.write(picked.toPath(), content);
        pick(picked);
        final File copy = new File(folder.getRoot(), "model.gguf");
        phone.until("the field names the copy", new Phone.Condition() {
            @Override
            public boolean holds() {
                return phone.text(R.id.model).equals(copy.getPath());
            }
        });
        assertEquals(-1, java.util.Arrays.mismatch(content, Files.readAllBytes(copy.toPath())));
        assertEquals(copy.getPath(), Choices.load(phone.activity.getSharedPreferences("settings", 0)).model);
    }

    @Test
    public void whatIsNoModelIsNotTaken() throws IOException {
        File picked = folder.newFile("some.gguf");
        try (OutputStream out = new FileOutputStream(picked)) {
            out.write("GGML is another format".getBytes());
        }
        pick(picked);
        phone.until("the copy has ended", new Phone.Condition() {
            @Override
            public boolean holds() {
                return phone.app.modelFile.state().contains("not a GGUF file");
            }
        });
        assertEquals("", phone.text(R.id.model));
        assertFalse(new File(folder.getRoot(), "model.gguf").exists());
    }

    @Test
    public void aFileThatIsGoneIsSaid() {
        pick(new File(folder.getRoot(), "gone.gguf"));
        phone.until("the copy has ended", new Phone.Condition() {
            @Override
            public boolean holds() {
                return phone.app.modelFile.state().contains("could not be copied");
            }
        });
    }

    private void pick(File file) {
        phone.menu(R.id.settings);
        phone.touch(R.id.choose);
        phone.pick(file);
    }

    @Test
    public void withoutTheNativeLibraryTheSettingsSaySo() {
        phone.menu(R.id.settings);
        assertTrue(phone.text(R.id.model_state).contains("No model can run on this device"));
    }

    @Test
    public void aModelThatCannotRunIsANoteAndTheServerAnswers() {
        phone.menu(R.id.settings);
        phone.write(R.id.model, new File(folder.getRoot(), "model.gguf").getPath());
        phone.touch(R.id.save);
        begin(ALL, "Done");
        untilIdle();
        assertTrue(phone.shows("No model can run on this device"));
    }

    @Test
    public void aPhoneWithoutAFilePickerSaysSo() {
        phone.activity.fakeHasPicker = false;
        phone.menu(R.id.settings);
        phone.touch(R.id.choose);
        assertTrue(phone.text(R.id.refusal).contains("give the path"));
    }

    // Accessibility

    @Test
    public void aScreenReaderHearsSentencesNotTokens() {
        begin(ALL, "Done");
        untilIdle();
        StringBuilder heard = new StringBuilder();
        for (String piece : View.fakeAnnounced) {
            heard.append(heard.length() == 0 ? "" : " ").append(piece);
            assertTrue(piece, piece.endsWith(".") || piece.endsWith("Done"));
        }
        assertEquals("all of it, once", ANSWER, heard.toString());
        assertTrue(View.fakeAnnounced.toString(), View.fakeAnnounced.size() <= 5);
        View.fakeAnnounced.clear();
        phone.rotate();
        assertTrue("not again after turning", View.fakeAnnounced.isEmpty());
        phone.setServer("ws://127.0.0.1:1", KEY);
        phone.ask("And now?");
        untilIdle();
        assertTrue(View.fakeAnnounced.toString(), View.fakeAnnounced.toString().contains("127.0.0.1:1"));
    }

    @Test
    public void everythingHasAName() {
        begin(ALL, "Done");
        untilIdle();
        assertNamed();
        assertTrue(described("You said: " + QUESTION));
        assertTrue(described("Answer: " + ANSWER));
        phone.menu(R.id.settings);
        assertNamed();
    }

    private boolean described(String text) {
        for (View view : phone.views()) {
            if (text.equals(String.valueOf(view.getContentDescription()))) {
                return true;
            }
        }
        return false;
    }

    private void assertNamed() {
        List<Integer> labelled = new ArrayList<Integer>();
        for (View view : phone.views()) {
            if (view instanceof TextView) {
                labelled.add(((TextView) view).fakeLabelFor());
            }
        }
        for (View view : phone.views()) {
            if (view instanceof EditText) {
                boolean named = ((EditText) view).getHint().length() > 0 || labelled.contains(view.getId());
                assertTrue("a field of id " + view.getId() + " has no name", named);
            } else if (view.fakeIsTouchable()) {
                assertFalse(((TextView) view).getText().toString().isEmpty());
            }
        }
    }

    @Test
    public void fingersAndLargeLettersFit() {
        begin(ALL, "Done");
        untilIdle();
        for (float letters : new float[] {1, 1.3f, 2}) {
            phone.configure(false, letters);
            assertFits(letters);
            phone.menu(R.id.settings);
            phone.write(R.id.server, ""); // so that the hint is visible
            assertFits(letters);
            phone.activity.onBackPressed();
        }
    }

    private void assertFits(float letters) {
        float smallest = 48 * phone.density;
        for (View view : phone.views()) {
            String what = view + " at " + letters;
            if (view.fakeIsTouchable() || view instanceof EditText) {
                assertTrue(what, view.getWidth() >= smallest && view.getHeight() >= smallest);
            }
            if (view instanceof TextView) {
                assertEquals(what, new ArrayList<String>(), ((TextView) view).fakeBroken());
            }
        }
    }

    @Test
    public void bothThemesCanBeRead() {
        begin(ALL, "Done");
        untilIdle();
        phone.menu(R.id.show_drafts);
        for (boolean dark : new boolean[] {false, true}) {
            phone.configure(dark, 1);
            int ground = phone.app.getColor(R.color.background);
            for (int color : new int[] {R.color.text, R.color.quiet, R.color.accepted, R.color.error}) {
                assertContrast(phone.app.getColor(color), ground);
            }
            assertContrast(phone.app.getColor(R.color.text), phone.app.getColor(R.color.question));
            assertContrast(0xFFFFFFFF, phone.app.getColor(R.color.bar));
            assertEquals(ground & 0xFFFFFF, phone.draw().getRGB(2, 200) & 0xFFFFFF);
        }
    }

    /** Returns the contrast of WCAG 2.1, which demands at least 4.5 to 1 for text. */
    private static void assertContrast(int one, int other) {
        double a = luminance(one) + 0.05;
        double b = luminance(other) + 0.05;
        String pair = String.format(Locale.ROOT, "%06x on %06x", one & 0xFFFFFF, other & 0xFFFFFF);
        assertTrue(pair, Math.max(a, b) / Math.min(a, b) >= 4.5);
    }

    private static double luminance(int color) {
        return 0.2126 * linear(color >> 16) + 0.7152 * linear(color >> 8) + 0.0722 * linear(color);
    }

    private static double linear(int channel) {
        double value = (channel & 255) / 255.0;
        return value <= 0.04045 ? value / 12.92 : Math.pow((value + 0.055) / 1.055, 2.4);
    }
}
